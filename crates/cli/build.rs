//! Makes the program small, and lays the functions that a start executes side by side: see `scripts/symbol-order`.

use std::path::PathBuf;

const ORDER: &str = "symbol-order.txt";
const NO_UNWINDING: &str = "no-unwinding.ld";
/// The variable with the file into which the linker writes where it has put each function.
const MAP: &str = "PENFOLD_LINK_MAP";

#[expect(clippy::disallowed_methods, reason = "cargo passes its facts in the environment")]
fn main() {
    println!("cargo::rerun-if-changed={ORDER}");
    println!("cargo::rerun-if-changed={NO_UNWINDING}");
    println!("cargo::rerun-if-env-changed=RUSTC_LINKER");
    println!("cargo::rerun-if-env-changed={MAP}");
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    // The linker that comes with Rust for this target is LLD, which knows the options. Another one may not.
    let has_own_linker =
        !variable("RUSTC_LINKER").is_empty() || variable("CARGO_ENCODED_RUSTFLAGS").contains("link");
    let is_known = variable("TARGET") == "x86_64-unknown-linux-gnu" && !has_own_linker;
    if is_known && matches!(variable("OPT_LEVEL").as_str(), "s" | "z") {
        let here = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
        let argument = |text: &str| println!("cargo::rustc-link-arg-bins=-Wl,{text}");
        argument(&format!("--symbol-ordering-file={},--no-warn-symbol-ordering", here.join(ORDER).display()));
        // Functions with the same code are one.
        argument("--icf=all");
        argument(&format!("--no-eh-frame-hdr,-T,{}", here.join(NO_UNWINDING).display()));
    }
    if !variable(MAP).is_empty() {
        println!("cargo::rustc-link-arg-bins=-Wl,-Map={},--no-demangle", variable(MAP));
    }
}
