//! What README.md shows is what penfold prints.

use crate::support::TestEnv;

const README: &str = include_str!("../../../../../README.md");

/// A line without what differs from run to run: ids, times, numbers of processes, the strays and what ran.
fn plain(line: &str) -> String {
    let Some(rest) = line.strip_prefix("penfold: ") else { return line.to_owned() };
    if rest.starts_with("  strays: ") || rest.starts_with("          ") {
        return "strays".to_owned();
    }
    if rest.starts_with("  ran: ") || rest.starts_with("       ") {
        return "ran".to_owned();
    }
    if rest.starts_with("  ") {
        return rest.to_owned();
    }
    let (said, done) = rest.split_once("; ended ").unwrap_or((rest, ""));
    let is_time = |word: &str| word.starts_with(|first: char| first.is_ascii_digit()) && word.ends_with('s');
    let words = said.split(' ').skip(1).map(|word| if is_time(word) { "TIME" } else { word });
    format!("ID {}; ended: {}", words.collect::<Vec<_>>().join(" "), !done.is_empty())
}

/// The first example of a session: its commands but `reap`, and what it shows for them.
fn example() -> (String, Vec<String>) {
    let block = README.split("```console\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let (mut commands, mut shown) = (String::new(), Vec::new());
    for line in block.lines() {
        match line.strip_prefix("$ ") {
            Some(command) if command.starts_with("penfold reap") => break,
            Some(command) => commands.extend([command, "\n"]),
            None => shown.push(plain(line)),
        }
    }
    shown.dedup();
    (commands, shown)
}

/// spec: 8.2
#[test]
fn first_example_prints_what_it_shows() {
    let (commands, shown) = example();
    assert!(commands.lines().count() >= 4, "{commands}");
    let env = TestEnv::new();
    let done = env.script(&format!("exec 2>&1; penfold() {{ $PENFOLD --root $ROOT \"$@\"; }}\n{commands}"));
    let mut printed: Vec<String> = done.out().lines().map(plain).collect();
    printed.dedup();
    assert_eq!(printed, shown, "{}", done.out());
    env.assert_nothing_left();
}

#[test]
fn first_command_gives_the_code_that_the_text_tells() {
    let line = README.lines().find_map(|line| line.strip_prefix("cargo run --profile quick -- ")).unwrap();
    let env = TestEnv::new();
    let done = env.script(&format!("$PENFOLD --root $ROOT {line}")).with_code(3);
    assert!(done.err().ends_with("   verified gone\n"), "{}", done.err());
    assert!(README.contains("and returns 3"));
    env.assert_nothing_left();
}
