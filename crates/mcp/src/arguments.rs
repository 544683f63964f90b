//! The arguments of the tools.

use std::collections::BTreeMap;
use std::time::Duration;

use rmcp::model::JsonObject;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::answer::ToolError;

/// The arguments of `run`.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RunArguments {
    pub(crate) command: Option<Vec<String>>,
    pub(crate) shell: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) cwd: Option<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) ready_port: Option<u16>,
    pub(crate) ready_text: Option<String>,
    pub(crate) ready_timeout_s: Option<f64>,
    pub(crate) timeout_s: Option<f64>,
    pub(crate) ttl_s: Option<f64>,
    pub(crate) grace_s: Option<f64>,
}

/// The arguments of `ps`.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PsArguments {
    pub(crate) ended: bool,
}

/// The arguments of `logs`.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(deny_unknown_fields)]
pub(crate) struct LogsArguments {
    pub(crate) sandbox: String,
    pub(crate) lines: Option<u64>,
    pub(crate) offset: Option<u64>,
    pub(crate) stream: Option<StreamName>,
    pub(crate) until: Option<String>,
    pub(crate) timeout_s: Option<f64>,
}

/// A stream of output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(rename_all = "lowercase")]
pub(crate) enum StreamName {
    Stdout,
    Stderr,
}

/// The arguments of `exec`.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(deny_unknown_fields)]
pub(crate) struct ExecArguments {
    pub(crate) sandbox: String,
    pub(crate) command: Option<Vec<String>>,
    pub(crate) shell: Option<String>,
    pub(crate) cwd: Option<String>,
    #[serde(default)]
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) timeout_s: Option<f64>,
}

/// The arguments of `stop`.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(deny_unknown_fields)]
pub(crate) struct StopArguments {
    pub(crate) sandbox: String,
    #[serde(default)]
    pub(crate) force: bool,
    pub(crate) grace_s: Option<f64>,
}

/// The arguments of `report` and `ports`.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(deny_unknown_fields)]
pub(crate) struct SandboxArguments {
    pub(crate) sandbox: String,
}

/// The prefix of the variables that only penfold sets.
const OWN: &str = "PENFOLD_";
/// The longest time that a sandbox can be given: a year.
const LONGEST: f64 = 31_536_000.0;

/// Reads the arguments of a tool.
///
/// # Errors
/// When one is missing, unknown or of another type.
pub(crate) fn read_arguments<T: DeserializeOwned>(tool: &str, given: JsonObject) -> Result<T, ToolError> {
    serde_json::from_value(Value::Object(given))
        .map_err(|error| ToolError::new(format!("the arguments of `{tool}` are wrong: {error}")))
}

/// Chooses between a command in words and a line for a shell.
///
/// # Errors
/// Unless exactly one is given and not empty.
pub(crate) fn command_words(
    words: Option<Vec<String>>,
    line: Option<String>,
) -> Result<Vec<String>, ToolError> {
    let words = match (words, line) {
        (Some(words), None) => words,
        (None, Some(line)) if line.trim().is_empty() => Vec::new(),
        (None, Some(line)) => vec!["/bin/sh".to_owned(), "-c".to_owned(), line],
        (Some(_), Some(_)) => return Err(ToolError::new("give `command` or `shell`, not both")),
        (None, None) => {
            return Err(ToolError::new("give `command`, a list of words, or `shell`, a line for /bin/sh"));
        }
    };
    if words.first().is_none_or(String::is_empty) {
        return Err(ToolError::new("the command is empty"));
    }
    if words.iter().any(|word| word.contains('\0')) {
        return Err(ToolError::new("the command contains a NUL"));
    }
    Ok(words)
}

/// Checks the names and values of variables.
///
/// # Errors
/// When one cannot be set, or belongs to penfold.
pub(crate) fn check_environment(given: &BTreeMap<String, String>) -> Result<(), ToolError> {
    let is_settable = |(name, value): (&String, &String)| {
        !name.is_empty() && !name.contains(['=', '\0']) && !name.starts_with(OWN) && !value.contains('\0')
    };
    match given.iter().find(|&variable| !is_settable(variable)) {
        None => Ok(()),
        Some((name, _)) => Err(ToolError::new(format!("the variable `{name}` in `env` cannot be set"))),
    }
}

/// Converts seconds.
///
/// # Errors
/// When they are negative, no number, or more than `longest`.
pub(crate) fn duration_of_seconds(name: &str, given: f64, longest: Duration) -> Result<Duration, ToolError> {
    let time = Duration::try_from_secs_f64(given).ok().filter(|&time| time <= longest);
    time.ok_or_else(|| {
        ToolError::new(format!("`{name}` is not a number of seconds from 0 to {}", longest.as_secs()))
    })
}

/// Converts seconds to milliseconds, for [`penfold_request::SandboxSpec`].
///
/// # Errors
/// As [`duration_of_seconds`], with a year as the longest time.
pub(crate) fn whole_milliseconds(name: &str, given: Option<f64>) -> Result<Option<u64>, ToolError> {
    let convert = |given| duration_of_seconds(name, given, Duration::from_secs_f64(LONGEST));
    Ok(given.map(convert).transpose()?.map(penfold_state::time::whole_millis))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: &Value) -> JsonObject {
        value.as_object().cloned().unwrap()
    }

    #[test]
    fn wrong_arguments_are_named() {
        let wrong = |value: Value| read_arguments::<RunArguments>("run", object(&value)).unwrap_err().0;
        assert!(wrong(json!({ "comand": [] })).contains("unknown field `comand`"));
        assert!(wrong(json!({ "command": "ls" })).contains("invalid type: string"));
        assert!(wrong(json!({ "ready_port": 70000 })).contains("70000"));
        assert!(
            read_arguments::<StopArguments>("stop", JsonObject::new())
                .unwrap_err()
                .0
                .contains("missing field `sandbox`")
        );
    }

    #[test]
    fn one_command_is_given() {
        let words = |words: &[&str]| Some(words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>());
        assert_eq!(command_words(words(&["ls", ""]), None).unwrap(), ["ls", ""]);
        assert_eq!(command_words(None, Some("a | b".to_owned())).unwrap(), ["/bin/sh", "-c", "a | b"]);
        let both = command_words(words(&["ls"]), Some("ls".to_owned()));
        for wrong in [
            both,
            command_words(None, None),
            command_words(words(&[]), None),
            command_words(words(&[""]), None),
        ] {
            wrong.unwrap_err();
        }
        command_words(words(&["a\0"]), None).unwrap_err();
        command_words(None, Some(" ".to_owned())).unwrap_err();
    }

    #[test]
    fn variables_of_penfold_and_impossible_times_are_refused() {
        let one = |name: &str| BTreeMap::from([(name.to_owned(), "x".to_owned())]);
        check_environment(&one("PORT")).unwrap();
        for name in ["", "A=B", "PENFOLD_SANDBOX"] {
            check_environment(&one(name)).unwrap_err();
        }
        let minute = Duration::from_mins(1);
        assert_eq!(duration_of_seconds("x", 0.5, minute).unwrap(), Duration::from_millis(500));
        for wrong in [-1.0, f64::NAN, f64::INFINITY, 61.0] {
            duration_of_seconds("x", wrong, minute).unwrap_err();
        }
    }
}
