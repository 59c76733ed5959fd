"""How many correct guesses a profile of privacy allows in one run: the f-DP form.

The game. m canaries are included or left out by fair coins, independently. An adversary sees what
the mechanism releases and guesses r of the coins; c of the guesses are right. Mahloujifar, Melis &
Chaudhuri ("Auditing f-differential privacy in one run", 2024) bound P[C ≥ c] under f-DP (their
Theorem 3.2 and Algorithm 3). Derived anew, for two-sided guesses with abstention:

Flip coin i alone. The releases before and after are those of neighbours, so for the event "guess i
is made, says s, and C − [guess i is right] = j − 1" the trade-off g (`trade_off`) applies: right
guesses with C = j before the flip against wrong guesses with C = j − 1 after it. Averaging over the
coins' values (flipping is a bijection), over i, and summing over j ≥ k, Jensen's inequality for the
concave g gives, with p_j = P[C = j],

    Σ_{j≥k} (j/m) p_j  ≤  g( Σ_{j≥k} ((r − j + 1)/m) p_{j−1} ),        k = 1 … r.            (*)

How large can P[C ≥ c] be under (*)? The set of feasible p is convex and holds "always all wrong",
so every smaller tail is feasible too, and it is enough to ask whether P[C ≥ c] = τ is. Moving mass
from C > c to c, and then what is not needed at c − 1 to c − 2, and so on, keeps (*): the left sides
fall, and the right sides that fall keep what they need. What is left is the smallest p below c:

    with R_k = Σ_{j≥k} (j/m) p_j and W_k = Σ_{j≥k} ((r − j)/m) p_j:
    R_c = cτ/m, W_c = (r − c)τ/m;  W_{k−1} = max(W_k, g⁻¹(R_k)),
    p_{k−1} = (W_{k−1} − W_k) m/(r − k + 1),  R_{k−1} = R_k + ((k − 1)/m) p_{k−1}

and τ is feasible exactly if the p so found sum to at most 1.
"""

from __future__ import annotations

import math

from audit.canaries.trade_off import TradeOff


def is_excluded(canaries: int, guesses: int, correct: int, level: float, allowed: TradeOff) -> bool:
    """Whether so many correct guesses have less than `level` of probability under a trade-off.

    Args:
        canaries: m, each included by a fair coin.
        guesses: r of them that are guessed; fixed beforehand.
        correct: c, right guesses.
        level: τ in (0, 1).
        allowed: what the mechanism's neighbours may differ by.

    Returns:
        True if P[C ≥ c] < τ under every mechanism with this trade-off.
    """
    if not 0 <= correct <= guesses <= canaries:
        raise ValueError(f"{correct} correct of {guesses} guesses on {canaries} canaries")
    right = correct * level / canaries
    wrong = (guesses - correct) * level / canaries
    mass = level
    for count in range(correct, 0, -1):
        needed = allowed.least(right)
        if not math.isfinite(needed):
            return True
        if needed > wrong:
            added = (needed - wrong) * canaries / (guesses - count + 1)
            wrong = needed
            right += (count - 1) * added / canaries
            mass += added
            if mass > 1.0:
                return True
    return False
