# Every command that a person types here. Without `just`: the same words as cargo aliases in .cargo/config.toml.

# Lists the commands.
default:
    @just --list

# Runs penfold as built for development.
run *ARGS:
    cargo run --quiet --package penfold -- {{ARGS}}

# Runs the tests; as root all of them, as a user those that need no privilege.
test *ARGS:
    scripts/test {{ARGS}}

# Runs the whole product of hostile trees, all pairs of damage, and a minute of each soak.
test-full *ARGS:
    scripts/test-full {{ARGS}}

# Runs penfold on other hosts, as guests in qemu: all, or root, old, user, service, container, reboot, newer.
vm-test *NAMES:
    scripts/vm-test {{NAMES}}

# Replaces the binary under 1000 living sandboxes.
upgrade-test *COMMIT:
    scripts/upgrade-test {{COMMIT}}

# Repeats chosen tests under load.
stress NAME *COUNT:
    scripts/stress {{NAME}} {{COUNT}}

# Lists the tests of each promise of SPECIFICATION.md in docs/traceability.md, and checks both.
spec:
    .ci/spec --write

# Checks format, lints and documentation.
lint:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets --all-features -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items --quiet

# Checks licences, bans and advisories of the dependencies.
deny:
    cargo deny check

# Formats everything.
fmt:
    cargo fmt --all

# Builds the binary that is installed.
build:
    cargo build --release --package penfold

# Compares with the kernel's floor and with peers: all, or run, teardown, memory, scan, build; --write keeps the tables.
bench *ARGS:
    cargo run --quiet --release --package penfold-bench -- {{ARGS}}

# Builds the small penfold for images: prints its path.
penfold-init *TARGET:
    scripts/penfold-init {{TARGET}}

# Writes anew which functions lie side by side in the release binary.
symbol-order *ARGS:
    scripts/symbol-order {{ARGS}}

# Builds the packages for Python, npm and Debian, and the files of a container image, into target/dist.
dist *TARGET:
    scripts/dist {{TARGET}}

# Installs these packages in fresh places and tests them.
packages-test *BINARY:
    scripts/packages-test {{BINARY}}

# Plays the stories of a user at a terminal.
tty-test *BINARY:
    scripts/tty-test {{BINARY}}

# Drives the MCP server with the published clients.
mcp-test *BINARY:
    scripts/mcp-test {{BINARY}}

# Writes the manual pages and completions to DIR.
assets DIR:
    mkdir -p {{DIR}}
    cargo run --quiet --release -- man {{DIR}}
    for shell in bash zsh fish; do cargo run --quiet --release -- completions $shell > {{DIR}}/penfold.$shell; done

# Lets system calls of penfold fail, one at a time, and judges what comes of it.
fault-sweep *ARGS:
    scripts/fault-sweep {{ARGS}}

# Runs the hostile trees under penfold and its peers: the table of the README.
compare:
    scripts/compare

# Runs published programs that leave processes behind, without penfold and with it: the table of docs/real-world.md.
real-world *CASES:
    scripts/real-world {{CASES}}

# Measures what `guard` costs, whom it blames and whom it leaves alone: the table of docs/guard.md.
guard-figures *NAMES:
    scripts/guard-figures {{NAMES}}

# All that the gate runs.
ci:
    .ci/run

# Tests a live server against docs/openapi.json.
openapi-test *ARGS:
    scripts/openapi-test {{ARGS}}

# Generates clients from docs/openapi.json, and has them use a live server.
openapi-clients *ARGS:
    scripts/openapi-clients {{ARGS}}

# Drives the E2B API with the published clients.
e2b-test *ARGS:
    scripts/e2b-test {{ARGS}}

# Runs upstream's tests of the Cloudflare API, from a clone of its repository.
cloudflare-test DIR *ARGS:
    scripts/cloudflare-test {{DIR}} {{ARGS}}

# Feeds a target of fuzz/ for a minute.
fuzz TARGET *ARGS:
    cargo fuzz run --sanitizer none {{TARGET}} -- -max_total_time=60 -dict=fuzz/dictionary {{ARGS}}

# Write the description of the native API, docs/openapi.json, from the code.
openapi:
    cargo nextest run -p penfold-api-native --run-ignored only -E 'test(write_the_description)'

# Write the schema of descriptions, docs/spec.schema.json, from the code.
schema:
    cargo nextest run -p penfold-request --run-ignored only -E 'test(write_the_schema)'

# Write the table of session commands, docs/session-commands.md, from the tests.
session-commands:
    cargo nextest run -p penfold-session --run-ignored only -E 'test(write_the_table)'
