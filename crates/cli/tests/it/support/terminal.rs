//! A terminal with a shell in it: a tmux server of its own, and what its screen shows.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use penfold_testkit::{until, until_after};

use super::{DEADLINE, TestEnv, has_program, has_terminals};

/// For sockets: a server that is asked to end goes on for a moment, and takes nobody in.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// The first pause between two looks at the screen.
const LOOK: Duration = Duration::from_millis(10);

/// A terminal, usually of 100 by 30. Dropping it ends the server and all in it.
pub struct Terminal<'a> {
    env: &'a TestEnv,
    socket: PathBuf,
}

impl<'a> Terminal<'a> {
    /// Opens it, with bash at its prompt, the last code as `<0>`; nothing where there is no tmux.
    pub fn open(env: &'a TestEnv) -> Option<Terminal<'a>> {
        Terminal::of_width(env, 100)
    }

    /// Opens one with this number of columns.
    pub fn of_width(env: &'a TestEnv, columns: usize) -> Option<Terminal<'a>> {
        if !has_program(&["tmux", "-V"]) || !has_terminals() {
            return None;
        }
        let socket = env.path(&format!("tmux-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
        let terminal = Terminal { env, socket };
        let shell = "exec env PS1='<$?> ' bash --norc --noprofile";
        terminal.tmux(&["new-session", "-d", "-x", &columns.to_string(), "-y", "30", shell]);
        terminal.shows("<0>");
        Some(terminal)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.env.command("tmux");
        command.arg("-S").arg(&self.socket).args(["-f", "/dev/null"]).args(words);
        command.env("TERM", "xterm").env_remove("TMUX").env("SHELL", "/bin/bash").stderr(Stdio::null());
        command
    }

    /// Gives tmux a command.
    pub fn tmux(&self, words: &[&str]) {
        self.command(words).stdout(Stdio::null()).status().unwrap();
    }

    /// Presses keys, as tmux names them.
    pub fn press(&self, keys: &str) {
        self.tmux(&["send-keys", keys]);
    }

    /// Types a line.
    pub fn line(&self, text: &str) {
        self.tmux(&["send-keys", "-l", text]);
        self.press("Enter");
    }

    /// What is on the screen.
    pub fn screen(&self) -> String {
        String::from_utf8_lossy(&self.command(&["capture-pane", "-p", "-J"]).output().unwrap().stdout)
            .into_owned()
    }

    /// What is on the screen, with colours.
    pub fn painted(&self) -> String {
        String::from_utf8_lossy(&self.command(&["capture-pane", "-p", "-e"]).output().unwrap().stdout)
            .into_owned()
    }

    /// What tmux says of the terminal, as `#{alternate_on}`.
    pub fn property(&self, format: &str) -> String {
        let said = self.command(&["display-message", "-p", format]).output().unwrap().stdout;
        String::from_utf8_lossy(&said).trim().to_owned()
    }

    /// Waits until the screen is so; tells whether it is. Each look starts a process, so the first pause is long.
    fn until_screen(&self, so: impl Fn(&str) -> bool) -> bool {
        until_after(LOOK, DEADLINE, || so(&self.screen()))
    }

    /// Waits until the screen is so.
    #[track_caller]
    pub fn wait_until(&self, what: &str, so: impl Fn(&str) -> bool) {
        assert!(self.until_screen(so), "not within {DEADLINE:?}: {what}:\n{}", self.screen());
    }

    /// Waits until a line of the screen, without blanks at its end, is or begins with this; `*` stands for the rest.
    #[track_caller]
    pub fn shows(&self, line: &str) {
        let wanted = |shown: &str| match line.strip_suffix('*') {
            Some(start) => shown.starts_with(start),
            None => shown.trim_end() == line.trim_end(),
        };
        let so = self.until_screen(|screen| screen.lines().any(wanted));
        assert!(so, "no line `{line}` on the screen:\n{}", self.screen());
    }

    /// Waits for the end of what was started, by the code in the next prompt, and clears the screen.
    #[track_caller]
    pub fn ends_with(&self, code: i32) {
        let prompt = format!("<{code}>");
        let ended = |screen: &str| {
            let last = screen.lines().rfind(|line| !line.trim().is_empty());
            // Of a key that ends something, the terminal shows the name in the same line.
            last.is_some_and(|line| line.trim_end().ends_with(&prompt))
        };
        assert!(self.until_screen(ended), "no {prompt}:\n{}", self.screen());
        self.line("clear");
        assert!(self.until_screen(|screen| screen.trim() == "<0>"), "{}", self.screen());
    }

    /// Waits until this command is the one that the keys go to, and waits for them.
    #[track_caller]
    pub fn is_in_front(&self, command: &str) {
        let in_front = |pid: i32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let mut fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
            let (state, group, launcher) = (fields.next(), fields.nth(1), fields.nth(2));
            state == Some("S") && group == launcher
        };
        let so = || self.env.running(command).iter().any(|process| in_front(process.pid()));
        assert!(until(DEADLINE, so), "`{command}` is not in front:\n{}", self.screen());
    }
}

impl Drop for Terminal<'_> {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}
