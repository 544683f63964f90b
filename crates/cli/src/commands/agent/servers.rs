//! The MCP servers in the settings of a client: Claude Code, Gemini, Cursor, VS Code, opencode, Zed.

use std::path::Path;

use jsonc_parser::ast::{Array, Object, ObjectProp, Value};
use jsonc_parser::common::Ranged;

use super::edits::{Edits, quoted, text_of};

/// The words between penfold and the command of a server.
const WORDS: [&str; 4] = ["run", "--on-stdin-close", "stop", "--"];

/// A server that the client starts.
pub(super) struct Server<'v> {
    /// The name of the server.
    pub(super) name: &'v str,
    object: &'v Object<'v>,
    /// The place of the command among the properties of the object.
    index: usize,
    command: &'v ObjectProp<'v>,
}

/// Finds the servers. A server that is a URL has no command, and is left out.
pub(super) fn find<'v>(root: Option<&'v Value<'v>>) -> Vec<Server<'v>> {
    let Some(root) = root.and_then(Value::as_object) else { return Vec::new() };
    let inner = |object: &'v Object<'v>, name: &str| object.get_object(name);
    let mut containers: Vec<&Object<'_>> = ["mcpServers", "servers", "mcp", "context_servers"]
        .iter()
        .filter_map(|key| inner(root, key))
        .collect();
    containers.extend(inner(root, "mcp").and_then(|mcp| inner(mcp, "servers")));
    let projects = inner(root, "projects").map(|projects| projects.properties.iter());
    let projects = projects.into_iter().flatten().filter_map(|project| project.value.as_object());
    containers.extend(projects.filter_map(|project| inner(project, "mcpServers")));
    containers.into_iter().flat_map(|container| &container.properties).filter_map(Server::of).collect()
}

impl<'v> Server<'v> {
    fn of(entry: &'v ObjectProp<'v>) -> Option<Server<'v>> {
        let object = entry.value.as_object()?;
        let index = object.properties.iter().position(|property| property.name.as_str() == "command")?;
        let command = object.properties.get(index)?;
        let first = command.value.as_array().map_or(Some(&command.value), |list| list.elements.first());
        let has_command = first.and_then(text_of).is_some_and(|program| !program.is_empty());
        has_command.then(|| Server { name: entry.name.as_str(), object, index, command })
    }

    /// Whether penfold is in front of the command.
    pub(super) fn is_wrapped(&self) -> bool {
        self.prefix().is_some()
    }

    /// The number of words in front of the command that are penfold's, without penfold itself. A user may have added
    /// flags. penfold's program may have any name: no other program has these words.
    fn prefix(&self) -> Option<usize> {
        let words = match self.list() {
            Some(list) => texts(list).split_first().map(|(_, words)| words.to_vec())?,
            None => self.object.get_array("args").map(texts).unwrap_or_default(),
        };
        let end = words.iter().position(|word| *word == "--")?;
        let flags = words.get(..end)?;
        let is_ours = flags.first() == Some(&"run")
            && flags.iter().any(|flag| flag.split('=').next() == Some("--on-stdin-close"));
        (is_ours && words.len() > end + 1).then_some(end + 1)
    }

    /// Puts penfold in front of the command.
    ///
    /// # Errors
    /// A reason, if the settings of the server have another form.
    pub(super) fn wrap(&self, penfold: &Path, edits: &mut Edits<'_>) -> Result<(), String> {
        let penfold = penfold.to_str().ok_or("the path of penfold is not UTF-8")?;
        let first = self.list().map_or(Some(&self.command.value), |list| list.elements.first());
        if self.is_wrapped() {
            if let Some(first) = first.filter(|first| text_of(first) != Some(penfold)) {
                edits.replace(first.start()..first.end(), quoted(penfold));
            }
            return Ok(());
        }
        let words = WORDS.into_iter().map(quoted);
        if let Some(list) = self.list() {
            edits.prepend(list, &std::iter::once(quoted(penfold)).chain(words).collect::<Vec<_>>());
            return Ok(());
        }
        let command = self.command.value.start()..self.command.value.end();
        // As it is written: another spelling of the same text would stay after `uninstall`.
        let words: Vec<String> = words.chain([edits.at(command.clone()).to_owned()]).collect();
        match self.object.get("args").map(|arguments| arguments.value.as_array()) {
            None => edits.add_after(self.command, "args", &format!("[{}]", words.join(", "))),
            Some(Some(list)) => edits.prepend(list, &words),
            Some(None) => return Err(format!("`args` of the server `{}` is no list", self.name)),
        }
        edits.replace(command, quoted(penfold));
        Ok(())
    }

    /// Takes penfold away from the command.
    pub(super) fn unwrap(&self, edits: &mut Edits<'_>) {
        let Some(count) = self.prefix() else { return };
        if let Some(list) = self.list() {
            return edits.remove_first(list, count + 1);
        }
        let Some(list) = self.object.get_array("args") else { return };
        let Some(program) = list.elements.get(count) else { return };
        let (start, end) = (self.command.value.start(), self.command.value.end());
        edits.replace(start..end, edits.at(program.start()..program.end()));
        let is_next = |next: &ObjectProp<'_>| {
            next.name.as_str() == "args" && edits.at(self.command.end()..next.start()).trim() == ","
        };
        let is_alone = list.elements.len() == count + 1 && edits.at(program.end()..list.end()) == "]";
        if is_alone && self.object.properties.get(self.index + 1).is_some_and(is_next) {
            edits.cut(self.command.end()..list.end());
        } else {
            edits.remove_first(list, count + 1);
        }
    }

    /// The command of a client that has program and arguments in one list.
    fn list(&self) -> Option<&'v Array<'v>> {
        self.command.value.as_array()
    }
}

/// The words of a list, up to the first that is no text.
fn texts<'v>(list: &'v Array<'v>) -> Vec<&'v str> {
    list.elements.iter().map_while(text_of).collect()
}
