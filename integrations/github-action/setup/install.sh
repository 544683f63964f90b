#!/usr/bin/env bash
# Installs penfold into the tools of the job: from a path, from a release with a checksum, or built from the source around this
# file. Reads the inputs of action.yml as PENFOLD_VERSION, PENFOLD_SHA256 and PENFOLD_BINARY.
set -euo pipefail

fail() {
    echo "::error title=penfold::$*" >&2
    exit 1
}
[[ $(uname -s) == Linux ]] || fail "penfold works on Linux only"

version=${PENFOLD_VERSION:-} checksum=${PENFOLD_SHA256:-} given=${PENFOLD_BINARY:-}
directory=${RUNNER_TEMP:?}/penfold/bin
mkdir -p "$directory"
program=$directory/penfold

if [[ -n $given ]]; then
    [[ -x $given ]] || fail "'$given' is no program"
    cp "$given" "$program.new"
elif [[ -n $version ]]; then
    # A release can be replaced, a checksum cannot.
    [[ $checksum =~ ^[0-9a-f]{64}$ ]] || fail "the version $version needs its checksum: with: { sha256: … }"
    url=$GITHUB_SERVER_URL/$ACTION_REPOSITORY/releases/download/v${version#v}/penfold-$(uname -m)-unknown-linux-gnu
    curl --fail --silent --show-error --location --retry 3 --output "$program.new" "$url" || fail "cannot download $url"
    sha256sum --check --status <<<"$checksum  $program.new" || {
        rm "$program.new"
        fail "the checksum of $url is not $checksum"
    }
else
    command -v cargo >/dev/null || fail "penfold is built here, and there is no cargo: set the inputs version and sha256"
    source=$(realpath "$(dirname "$0")/../../..")
    target=$RUNNER_TEMP/penfold/target
    cargo build --locked --quiet --release --package penfold --manifest-path "$source/Cargo.toml" --target-dir "$target"
    cp "$target"/*/release/penfold "$program.new"
fi
chmod 755 "$program.new"
# Only a program that runs here takes the place.
said=$("$program.new" version) || fail "the program does not run here"
mv "$program.new" "$program"
echo "$directory" >>"$GITHUB_PATH"
printf 'path=%s\nversion=%s\n' "$program" "$said" >>"$GITHUB_OUTPUT"
