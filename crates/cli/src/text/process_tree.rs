//! The processes of a sandbox, drawn as a tree.

use std::collections::HashMap;
use std::fmt::Write as _;

use penfold_control::SandboxView;
use penfold_control::view::MemberView;

use penfold_process::quote_words;

use crate::text::{lines, template};

/// The format of the tree.
#[derive(Clone, Copy)]
pub(crate) struct Style {
    pub(crate) pids: bool,
    pub(crate) full: bool,
}

/// Draws one line for each process; the processes of an exec are below a line for that exec.
pub(crate) fn draw(seen: &SandboxView, members: &[MemberView], style: Style) -> String {
    let mut page = Page { text: String::new(), style, below: HashMap::new() };
    for member in members {
        page.below.entry(member.parent).or_default().push(member);
    }
    let tops = page.below.remove(&None).unwrap_or_default();
    let own: Vec<&MemberView> = tops.iter().copied().filter(|member| member.exec.is_none()).collect();
    let numbers: Vec<u32> = seen.execs.iter().map(|exec| exec.number).collect();
    page.level(&own, "", numbers.is_empty());
    for (index, number) in numbers.iter().enumerate() {
        let last = index + 1 == numbers.len();
        let command = seen.execs.get(index).map(|exec| quote_words(&exec.command)).unwrap_or_default();
        let _ = writeln!(page.text, "{}exec {number}  {}", branch(last), template::printable(&command));
        let of_exec: Vec<&MemberView> =
            tops.iter().copied().filter(|member| member.exec == Some(*number)).collect();
        page.level(&of_exec, trunk(last), true);
    }
    page.text
}

struct Page<'a> {
    text: String,
    style: Style,
    below: HashMap<Option<i32>, Vec<&'a MemberView>>,
}

impl Page<'_> {
    /// Draws the processes below `tops`. `closed`: no other branch follows. Iterative, because a tree may be as deep as
    /// the pid limit of the host.
    fn level(&mut self, tops: &[&MemberView], indent: &str, closed: bool) {
        /// The maximum indent; deeper processes keep it.
        const DEEP: usize = 200;
        let mut pending: Vec<(&MemberView, String, bool)> = Vec::new();
        for (index, member) in tops.iter().enumerate().rev() {
            pending.push((member, indent.to_owned(), closed && index + 1 == tops.len()));
        }
        while let Some((member, indent, last)) = pending.pop() {
            let words = self.words(member);
            let _ = writeln!(self.text, "{indent}{}{words}", branch(last));
            let children = self.below.get(&Some(member.id.pid.as_raw_pid())).cloned().unwrap_or_default();
            let inner = if indent.len() < DEEP { format!("{indent}{}", trunk(last)) } else { indent };
            for (index, child) in children.iter().enumerate().rev() {
                pending.push((child, inner.clone(), index + 1 == children.len()));
            }
        }
    }

    fn words(&self, member: &MemberView) -> String {
        let mut words = String::new();
        if self.style.pids {
            let _ = write!(words, "{} ", member.id.pid.as_raw_pid());
        }
        lines::push(&mut words, if self.style.full { &member.command } else { &member.name });
        if matches!(member.state, 'D' | 'T' | 't') {
            let _ = write!(words, "  (state {})", member.state);
        }
        if let Some(why) = &member.stray {
            let _ = write!(words, "  (stray: {why})");
        }
        words
    }
}

fn branch(last: bool) -> &'static str {
    if last { "└─ " } else { "├─ " }
}

fn trunk(last: bool) -> &'static str {
    if last { "   " } else { "│  " }
}
