# The two commands of README in a container; docs/contributing.md has how it was tried.
#   docker build --tag blockyard .
#   docker run --rm blockyard            # make run
#   docker run --rm blockyard make test
ARG PYTHON=3.11
FROM python:${PYTHON}-slim-bookworm AS tools
# Without versions, because Debian keeps only the newest.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends git make \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 1000 yard
# A number, so that a cluster can tell that it is not root.
USER 1000

FROM tools AS blockyard
WORKDIR /home/yard/blockyard
# What is installed depends on these files alone, so a change of the code installs nothing again. Of the others the
# install needs the names: it points at the checkout.
COPY --chown=yard Makefile pyproject.toml README.md LICENSE ./
COPY --chown=yard requirements requirements
RUN mkdir -p src/blockyard conf sweeps docs && touch src/blockyard/__init__.py docs/verdicts.json \
    && PIP_NO_CACHE_DIR=1 make .venv/run.done
COPY --chown=yard . .
CMD ["make", "run"]
