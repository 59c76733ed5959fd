# dpfedadamw in an image:
#
#     docker build -t dpfedadamw .
#     docker run --rm dpfedadamw list specs
#
# It runs as user 1000, never as root. As yourself, with runs in this folder and your own signing keys,
# which must be there (mkdir -p ~/.config/dpfedadamw/keys):
#
#     docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/work" \
#         -v "$HOME/.config/dpfedadamw/keys:/keys" -e DPFEDADAMW_KEYS=/keys dpfedadamw run quickstart
#
# For CUDA: --build-arg CUDA=--cuda, and docker run --gpus all.
# Extras:   --build-arg EXTRAS=transformers,hub (requirements/install.py names those that are locked)
#
# The digest is that of python:3.12.14-slim-trixie for all platforms: `docker buildx imagetools inspect python:3.12-slim`.
FROM python:3.12-slim@sha256:f77ac9e44ae96ef2c90b8053ea08c31f8be030f824196b0ae4db6d462c84e51f

ARG CUDA=
ARG EXTRAS=

COPY . /source
# Each package has one of the SHA-256 of requirements/*.txt, or the build ends.
RUN PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore \
        python /source/requirements/install.py $CUDA $(echo "$EXTRAS" | tr '[],' '   ') \
    && rm -rf /source \
    && useradd --uid 1000 --create-home runner \
    && mkdir /work && chown runner /work
USER runner
# Runs are written where the command is run, and signing keys to the home folder: mount both to keep
# them.
WORKDIR /work
ENTRYPOINT ["dpfedadamw"]
CMD ["--help"]
