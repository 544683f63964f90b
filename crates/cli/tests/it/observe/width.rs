//! What is shown on a terminal fits it, and has colour.

use crate::support::{Terminal, TestEnv, skip};

/// spec: 8.16
#[test]
fn tables_and_lines_fit_the_terminal() {
    let env = TestEnv::new();
    let long = "sleep 4405 # a command that is longer than the narrow terminal and the wide one together, a good deal longer even";
    let sandbox = env.detach(["--name", "a-name-that-is-rather-long", "sh", "-c", long]);
    let failed = env.detach(["--name", "failed", "sh", "-c", "exit 3"]);
    failed.await_end();
    let terminal = |columns| {
        let terminal = Terminal::of_width(&env, columns)?;
        terminal.line("p() { \"$PENFOLD\" --root \"$ROOT\" \"$@\"; }");
        terminal.ends_with(0);
        Some(terminal)
    };
    for width in [60, 160] {
        let Some(terminal) = terminal(width) else { return skip("there is no tmux") };
        terminal.line("p ps -a > all; p ps -a");
        terminal.shows(&format!("{}*", sandbox.id));
        let screen = terminal.screen();
        let lines: Vec<&str> = screen.lines().filter(|line| line.starts_with(sandbox.id.as_str())).collect();
        let [line] = lines.as_slice() else { panic!("{screen}") };
        let columns = line.trim_end().chars().count();
        assert_eq!(columns, width, "{screen}");
        assert!(line.trim_end().ends_with('…'), "{screen}");
        assert_eq!(screen.contains("STARTED"), width == 160, "{screen}");
        // What is no terminal gets all.
        let all = std::fs::read_to_string(env.path("work/all")).unwrap();
        assert!(all.contains(long) && all.contains("STARTED") && !all.contains('\u{1b}'), "{all}");
        terminal.ends_with(0);
        terminal.line("p doctor; echo done");
        terminal.shows("done");
        assert!(terminal.screen().contains(" of ours"), "{}", terminal.screen());
        // A word that is longer than the terminal stays whole, so that it can be copied.
        let is_whole = |line: &str| line.trim_end().chars().count() <= width || !line.trim().contains(' ');
        assert!(terminal.screen().lines().all(is_whole), "{}", terminal.screen());
        terminal.ends_with(0);
    }
    let Some(terminal) = terminal(100) else { return skip("there is no tmux") };
    terminal.line("p ps -a");
    terminal.shows(&format!("{}*", sandbox.id));
    let painted = terminal.painted();
    assert!(painted.contains("\u{1b}[32mrunning"), "{painted:?}");
    assert!(painted.contains("\u{1b}[31mexited (3)"), "{painted:?}");
    terminal.ends_with(0);
    terminal.line("p inspect failed | wc -l");
    terminal.shows("1");
    terminal.ends_with(0);
    terminal.line("p inspect failed");
    terminal.shows("]");
    sandbox.call(&env, &["kill", "ID"]).with_code(0);
}
