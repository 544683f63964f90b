//! Which sandboxes a list has, and what a look costs.

use super::*;
use crate::model::StatusColour;

/// Sandboxes that a test begins and ends.
#[derive(Default)]
struct Fake {
    living: Vec<&'static str>,
    ended: Vec<&'static str>,
    looks: Vec<String>,
}

fn sandbox(id: &str, mood: StatusColour) -> Sandbox {
    Sandbox {
        id: id.to_owned(),
        name: None,
        status: String::new(),
        colour: mood,
        cpu_percent: None,
        usage: None,
        lease: "-".to_owned(),
        command: String::new(),
    }
}

impl Source for Fake {
    fn list(&mut self) -> Result<Vec<Sandbox>, String> {
        Ok(self.living.iter().map(|id| sandbox(id, StatusColour::Running)).collect())
    }

    fn ended(&mut self, id: &str) -> Option<Sandbox> {
        self.ended.contains(&id).then(|| sandbox(id, StatusColour::Ended))
    }

    fn detail(&mut self, id: &str) -> Detail {
        self.looks.push(format!("detail {id}"));
        Detail::default()
    }

    fn tree(&mut self, id: &str) -> Result<Vec<String>, String> {
        self.looks.push(format!("tree {id}"));
        Ok(Vec::new())
    }

    fn log(&mut self, id: &str) -> Result<Vec<String>, String> {
        self.looks.push(format!("log {id}"));
        Ok(Vec::new())
    }
}

fn ids(rows: Result<Vec<Sandbox>, String>) -> Vec<(String, StatusColour)> {
    rows.unwrap().into_iter().map(|row| (row.id, row.colour)).collect()
}

#[test]
fn an_ended_sandbox_shows_for_a_while_or_as_long_as_its_page() {
    let mut memory = Memory::default();
    let mut source = Fake { living: vec!["b", "a"], ended: vec!["a"], ..Fake::default() };
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let open = Page::Log("a".to_owned());
    assert_eq!(ids(memory.list(&mut source, &Page::Table, at(0))).len(), 2);
    source.living = vec!["b"];
    let both = [("b".to_owned(), StatusColour::Running), ("a".to_owned(), StatusColour::Ended)];
    assert_eq!(ids(memory.list(&mut source, &Page::Table, at(1))), both);
    assert_eq!(ids(memory.list(&mut source, &open, at(60))), both);
    assert_eq!(ids(memory.list(&mut source, &Page::Table, at(61))), both[..1]);
    source.living = Vec::new();
    assert_eq!(ids(memory.list(&mut source, &Page::Table, at(62))), [], "nothing is known of b any more");
}

#[test]
fn only_rows_on_the_screen_cost_a_look() {
    let mut memory = Memory::default();
    let mut source = Fake { living: vec!["c", "b", "a"], ..Fake::default() };
    let page = Page::Tree("c".to_owned());
    let listed = memory.list(&mut source, &page, Instant::now());
    let shown = Shown { page, visible: vec!["b".to_owned()] };
    memory.looked(&mut source, &shown, Some(listed));
    assert_eq!(source.looks, ["tree c", "detail b"]);
}

#[test]
fn the_thread_ends_when_it_is_told() {
    let wanted = std::sync::Arc::new(Wanted::new(Shown { page: Page::Table, visible: Vec::new() }));
    let (sender, receiver) = std::sync::mpsc::channel();
    let ours = std::sync::Arc::clone(&wanted);
    let thread = std::thread::spawn(move || {
        refresh_until_over(Box::new(Fake::default()), &ours, |looked| sender.send(looked).is_ok());
    });
    let first = receiver.recv_timeout(Duration::from_secs(30)).unwrap();
    assert!(first.listed.is_some_and(|listed| listed.is_ok()));
    wanted.finish();
    thread.join().unwrap();
}
