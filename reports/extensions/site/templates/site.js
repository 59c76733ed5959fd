"use strict";
(() => {
  const body = document.querySelector("table.runs tbody");
  const rows = [...body.rows];
  const heads = [...document.querySelectorAll("table.runs th")];
  const keys = heads.map((head) => head.dataset.key);
  const numbers = new Set(["epsilon", "server", "accuracy"]);
  const controls = document.querySelector(".controls");
  const order = document.querySelector("[data-order]");
  const falling = document.querySelector("[data-falling]");
  const search = document.querySelector("[data-search]");
  const filters = [...document.querySelectorAll("[data-filter]")];
  const shown = document.querySelector("[data-shown]");
  const value = (row, key) => row.cells[keys.indexOf(key)].dataset.value;

  const sort = (key, down) => {
    const compare = (a, b) => {
      const [x, y] = [value(a, key), value(b, key)];
      // What is not known stands last, whichever way.
      if (x === "" || y === "") return (x === "") - (y === "");
      const found = numbers.has(key) ? Number(x) - Number(y) : x.localeCompare(y, "en");
      return down ? -found : found;
    };
    rows.sort((a, b) => compare(a, b) || a.dataset.row - b.dataset.row);
    body.append(...rows);
    for (const head of heads) {
      if (head.dataset.key === key) head.setAttribute("aria-sort", down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
    order.value = key;
    falling.checked = down;
  };

  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of rows) {
      const wanted = words.every((word) => row.dataset.words.includes(word))
        && filters.every((one) => !one.value || value(row, one.dataset.filter) === one.value);
      row.hidden = !wanted;
      count += wanted;
      for (const point of document.querySelectorAll(`[data-point="${row.dataset.row}"]`)) {
        point.toggleAttribute("hidden", !wanted);
      }
    }
    shown.textContent = `${count} of ${rows.length} runs`;
  };

  heads.forEach((head) => head.firstElementChild.addEventListener("click", () => {
    sort(head.dataset.key, head.getAttribute("aria-sort") === "ascending");
  }));
  order.addEventListener("change", () => sort(order.value, falling.checked));
  falling.addEventListener("change", () => sort(order.value, falling.checked));
  search.addEventListener("input", filter);
  filters.forEach((one) => one.addEventListener("change", filter));
  sort("created", true);
  controls.hidden = false;
})();
