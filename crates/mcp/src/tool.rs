//! The tools: names, descriptions for models, and the schemas of the arguments.

use std::sync::Arc;

use rmcp::model::{JsonObject, Tool as Listed, ToolAnnotations};
use serde_json::{Value, json};

/// A tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tool {
    Run,
    Ps,
    Logs,
    Exec,
    Stop,
    Report,
    Ports,
}

impl Tool {
    /// All of them, in the order in which they are listed.
    pub(crate) const ALL: [Tool; 7] =
        [Tool::Run, Tool::Ps, Tool::Logs, Tool::Exec, Tool::Stop, Tool::Report, Tool::Ports];

    /// Finds a tool by its name.
    pub(crate) fn named(name: &str) -> Option<Tool> {
        Tool::ALL.into_iter().find(|tool| tool.name() == name)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Tool::Run => "run",
            Tool::Ps => "ps",
            Tool::Logs => "logs",
            Tool::Exec => "exec",
            Tool::Stop => "stop",
            Tool::Report => "report",
            Tool::Ports => "ports",
        }
    }

    /// Whether the tool changes nothing.
    pub(crate) fn is_read_only(self) -> bool {
        matches!(self, Tool::Ps | Tool::Logs | Tool::Report | Tool::Ports)
    }

    fn description(self) -> &'static str {
        match self {
            Tool::Run => {
                "Start a dev server or another long-running command as a sandbox, and wait until it is ready. Use this instead \
                 of `command &` or `nohup`. Without `ready_port` and `ready_text`, `run` only looks for one second whether the \
                 command stays alive. If the command ends before it is ready, the answer has its exit code and last output, and \
                 nothing of it is left. If the time is over first, the sandbox goes on: read its log. All sandboxes that this \
                 server started end with it."
            }
            Tool::Ps => {
                "List the sandboxes that run: id, name, status, command. `started_here` says whether this server started it: \
                 `stop` and `exec` act on these only, unless the server was started with `--all`."
            }
            Tool::Logs => {
                "Read the output of a sandbox, also after its end: the last lines, or what follows an offset. With `until`, wait \
                 until that text appears in a line. Without `offset` the whole log counts for `until`; give the `next_offset` of \
                 an earlier answer to wait for new output only, for example before you change a file and wait for the rebuild."
            }
            Tool::Exec => {
                "Run a command in a sandbox, with the environment and directory of the sandbox, and wait for its end. Whatever \
                 the command leaves in the background is ended with it: start servers with `run`. Only for sandboxes that this \
                 server started, unless it was started with `--all`."
            }
            Tool::Stop => {
                "End a sandbox with all its processes: polite signal, SIGKILL after the grace. The answer comes after nothing is \
                 left, so its ports are free then. A sandbox that has ended counts as stopped. Only for sandboxes that this server \
                 started, unless it was started with `--all`."
            }
            Tool::Report => {
                "Tell how a sandbox ended: cause, exit code, each process that had to be ended, and whether something is left."
            }
            Tool::Ports => {
                "List the TCP ports on which the processes of a sandbox listen, with pid and command."
            }
        }
    }

    fn title(self) -> &'static str {
        match self {
            Tool::Run => "Start a dev server",
            Tool::Ps => "List sandboxes",
            Tool::Logs => "Read or await output",
            Tool::Exec => "Run a command in a sandbox",
            Tool::Stop => "Stop a sandbox",
            Tool::Report => "How a sandbox ended",
            Tool::Ports => "Listening ports",
        }
    }

    fn properties(self) -> (Value, &'static [&'static str]) {
        let sandbox = text("Id, unique prefix of an id, or name.");
        match self {
            Tool::Run => (
                json!({
                    "command": words(), "shell": line(),
                    "name": text("A name for the sandbox: letters, digits, `_`, `.` and `-`; it must not be in use."),
                    "cwd": text("The directory in which the command starts; default: that of this server."),
                    "env": variables("Variables, in addition to those of this server."),
                    "ready_port": {
                        "type": "integer", "minimum": 0, "maximum": 65535,
                        "description": "Ready once the command listens on this TCP port; 0 means on any port.",
                    },
                    "ready_text": text("Ready once a line of the output contains this text. Colours are ignored."),
                    "ready_timeout_s": seconds("The longest wait in seconds; default 30, at most 600."),
                    "timeout_s": seconds("The sandbox is stopped after this many seconds."),
                    "ttl_s": seconds("The sandbox is stopped after this many seconds, unless `penfold extend` renews it."),
                    "grace_s": seconds("The time between the polite signal and SIGKILL; default 10."),
                }),
                &[],
            ),
            Tool::Ps => (json!({ "ended": flag("Also list sandboxes that have ended.") }), &[]),
            Tool::Logs => (
                json!({
                    "sandbox": sandbox,
                    "lines": whole("How many of the last lines; default 50. With `offset` or `until`: ignored."),
                    "offset": whole("Begin here: a `next_offset` of an earlier answer."),
                    "stream": { "type": "string", "enum": ["stdout", "stderr"], "description": "Only this stream." },
                    "until": text("Wait until a line contains this text. Colours are ignored."),
                    "timeout_s": seconds("The longest wait for `until` in seconds; default 30, at most 600."),
                }),
                &["sandbox"],
            ),
            Tool::Exec => (
                json!({
                    "sandbox": sandbox, "command": words(), "shell": line(),
                    "cwd": text("The directory in which the command starts; default: that of the sandbox."),
                    "env": variables("Variables, in addition to those of the sandbox."),
                    "timeout_s": seconds("The command is ended after this many seconds; default 60, at most 3600."),
                }),
                &["sandbox"],
            ),
            Tool::Stop => (
                json!({
                    "sandbox": sandbox,
                    "force": flag("Kill at once, without the polite signal."),
                    "grace_s": seconds("The time between the polite signal and SIGKILL; default: the sandbox's own."),
                }),
                &["sandbox"],
            ),
            Tool::Report | Tool::Ports => (json!({ "sandbox": sandbox }), &["sandbox"]),
        }
    }

    fn schema(self) -> JsonObject {
        let (properties, required) = self.properties();
        let mut schema = JsonObject::new();
        schema.insert("type".to_owned(), "object".into());
        schema.insert("properties".to_owned(), properties);
        if !required.is_empty() {
            schema.insert("required".to_owned(), required.into());
        }
        schema.insert("additionalProperties".to_owned(), false.into());
        schema
    }

    /// The tool as a client sees it.
    pub(crate) fn listed(self) -> Listed {
        let annotations = ToolAnnotations::with_title(self.title())
            .read_only(self.is_read_only())
            .destructive(matches!(self, Tool::Exec | Tool::Stop))
            .idempotent(self.is_read_only() || self == Tool::Stop)
            .open_world(matches!(self, Tool::Run | Tool::Exec));
        Listed::new(self.name(), self.description(), Arc::new(self.schema()))
            .with_title(self.title())
            .with_annotations(annotations)
    }
}

fn text(description: &str) -> Value {
    json!({ "type": "string", "description": description })
}

fn whole(description: &str) -> Value {
    json!({ "type": "integer", "minimum": 0, "description": description })
}

fn seconds(description: &str) -> Value {
    json!({ "type": "number", "minimum": 0, "description": description })
}

fn flag(description: &str) -> Value {
    json!({ "type": "boolean", "description": description })
}

fn words() -> Value {
    json!({
        "type": "array", "items": { "type": "string" }, "minItems": 1,
        "description": "The program and its arguments. Give this or `shell`.",
    })
}

fn line() -> Value {
    text("A line for /bin/sh. Give this or `command`.")
}

fn variables(description: &str) -> Value {
    json!({ "type": "object", "additionalProperties": { "type": "string" }, "description": description })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde::Serialize;
    use serde::de::DeserializeOwned;

    use super::*;
    use crate::arguments::{
        ExecArguments, LogsArguments, PsArguments, RunArguments, SandboxArguments, StopArguments,
    };

    fn fields<T: Serialize + DeserializeOwned>() -> BTreeSet<String> {
        let least: T = serde_json::from_value(json!({ "sandbox": "web" }))
            .or_else(|_| serde_json::from_value(json!({})))
            .unwrap();
        serde_json::to_value(least).unwrap().as_object().unwrap().keys().cloned().collect()
    }

    #[test]
    fn schemas_have_the_fields_that_are_read() {
        for tool in Tool::ALL {
            let read = match tool {
                Tool::Run => fields::<RunArguments>(),
                Tool::Ps => fields::<PsArguments>(),
                Tool::Logs => fields::<LogsArguments>(),
                Tool::Exec => fields::<ExecArguments>(),
                Tool::Stop => fields::<StopArguments>(),
                Tool::Report | Tool::Ports => fields::<SandboxArguments>(),
            };
            let (properties, required) = tool.properties();
            let described: BTreeSet<String> = properties.as_object().unwrap().keys().cloned().collect();
            assert_eq!(described, read, "{tool:?}");
            assert_eq!(required.contains(&"sandbox"), read.contains("sandbox"), "{tool:?}");
            assert_eq!(Tool::named(tool.name()), Some(tool));
        }
    }
}
