# dpfedadamw in an image:
#
#     docker build -t dpfedadamw .
#     docker run --rm -v "$PWD:/work" dpfedadamw run quickstart
#
# As yourself, with runs in this folder and your own signing keys:
#
#     docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/work" \
#         -v "$HOME/.config/dpfedadamw/keys:/keys" -e DPFEDADAMW_KEYS=/keys dpfedadamw run quickstart
#
# For CUDA: --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu128, and docker run --gpus all.
# Extras:   --build-arg EXTRAS=[transformers,hub]
FROM python:3.12-slim

ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG EXTRAS=

COPY . /source
# torch first, from its own index: the one on PyPI brings gigabytes of CUDA packages.
RUN pip install --no-cache-dir --index-url "$TORCH_INDEX" \
        "$(grep '^torch==' /source/constraints.txt)" \
    && pip install --no-cache-dir -c /source/constraints.txt "/source$EXTRAS" \
    && rm -rf /source \
    && useradd --create-home runner \
    && mkdir /work && chown runner /work
USER runner
# Runs are written where the command is run, and signing keys to the home folder: mount both to keep
# them.
WORKDIR /work
ENTRYPOINT ["dpfedadamw"]
CMD ["--help"]
