//! The texts of the view.

/// The keys below the table.
pub(super) const TABLE_KEYS: &str = "enter tree  l logs  s stop  k kill  / filter  ? help  q quit";
/// The keys below the page of a sandbox.
pub(super) const PAGE_KEYS: &str = "esc back  enter tree  l logs  s stop  k kill  ? help  q quit";

/// The lines of the help.
pub(super) const HELP: &[&str] = &[
    "enter      the processes of a sandbox as a tree   penfold tree -p --full ID",
    "l          its output, followed                   penfold logs -f ID",
    "s          stop: polite signal, grace, SIGKILL    penfold stop ID",
    "k          kill at once; asks first               penfold kill ID",
    "/          show only rows with a text; esc clears penfold ps --filter",
    "↑ ↓ j      move; page up, page down, home, end",
    "esc        back; in the table: quit",
    "q Ctrl-C   quit; Ctrl-Z suspends",
    "",
    "CPU is in percent of one CPU. MEM is that of the cgroup, or the",
    "sum over the processes: `penfold stats --json` says which.",
    "A sandbox that has ended stays in the table for half a minute.",
    "",
    "any key goes back",
];

/// The command lines that do the same as the keys.
pub(super) fn command_lines(id: &str) -> String {
    format!("penfold tree -p --full {id} | logs -f {id} | stop {id} | kill {id}")
}
