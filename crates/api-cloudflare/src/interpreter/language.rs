//! The languages of contexts.

use crate::error::{ApiError, Code};

/// The program of a context, as text.
const DRIVER: &str = "PENFOLD_DRIVER";
/// What python3 runs: the driver is in a variable, so that no list of processes shows it.
const PYTHON: &str = r#"import os; exec(compile(os.environ.pop("PENFOLD_DRIVER"), "<driver>", "exec"))"#;
/// The same for node.
const NODE: &str =
    "const driver = process.env.PENFOLD_DRIVER; delete process.env.PENFOLD_DRIVER; (0, eval)(driver)";

/// A language.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Language {
    Python,
    JavaScript,
    TypeScript,
}

impl Language {
    /// Finds a language by one of its names; without a name, it is Python.
    ///
    /// # Errors
    /// When no language has the name.
    pub(super) fn find(name: Option<&str>) -> Result<Language, ApiError> {
        let name = name.filter(|name| !name.is_empty()).unwrap_or("python");
        match name.to_lowercase().as_str() {
            "python" | "python3" => Ok(Language::Python),
            "javascript" | "js" | "node" => Ok(Language::JavaScript),
            "typescript" | "ts" => Ok(Language::TypeScript),
            _ => {
                let message =
                    format!("unknown language {name:?}: use \"python\", \"javascript\" or \"typescript\"");
                Err(ApiError::new(Code::ValidationFailed, message).with("field", "language"))
            }
        }
    }

    /// The name as the wire and the label of a context have it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Language::Python => "python",
            Language::JavaScript => "javascript",
            Language::TypeScript => "typescript",
        }
    }

    /// Tells whether a context of this language can run code of the other one.
    pub(super) fn can_run(self, other: Language) -> bool {
        (self == Language::Python) == (other == Language::Python)
    }

    /// The command of a context.
    pub(super) fn command(self) -> [&'static str; 3] {
        match self {
            Language::Python => ["python3", "-c", PYTHON],
            Language::JavaScript | Language::TypeScript => ["node", "-e", NODE],
        }
    }

    /// The variables of a context.
    pub(super) fn variables(self) -> [(&'static str, &'static str); 2] {
        match self {
            Language::Python => [(DRIVER, include_str!("driver.py")), ("MPLBACKEND", "Agg")],
            Language::JavaScript | Language::TypeScript => {
                [(DRIVER, include_str!("driver.js")), ("NODE_NO_WARNINGS", "1")]
            }
        }
    }

    /// The error when the program is not installed.
    pub(super) fn missing(self) -> ApiError {
        match self {
            Language::Python => ApiError::new(
                Code::PythonNotAvailable,
                "Python interpreter not available: the host has no `python3` in the PATH of the session (the reference \
                 has one in its images with `-python`)",
            )
            .suggestion("install Python 3.8 or newer on the host"),
            Language::JavaScript | Language::TypeScript => ApiError::new(
                Code::InternalError,
                "JavaScript runtime not available: the host has no `node` in the PATH of the session",
            )
            .suggestion("install Node.js 20 or newer on the host"),
        }
    }

    /// The error when node cannot run TypeScript.
    pub(super) fn too_old() -> ApiError {
        let message = "TypeScript is not available: the `node` of the host cannot strip types";
        ApiError::new(Code::InternalError, message).suggestion("install Node.js 22.13 or newer on the host")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_language_has_several_names() {
        for (name, language) in [
            (None, Language::Python),
            (Some(""), Language::Python),
            (Some("Python3"), Language::Python),
            (Some("js"), Language::JavaScript),
            (Some("node"), Language::JavaScript),
            (Some("TypeScript"), Language::TypeScript),
        ] {
            assert_eq!(Language::find(name).unwrap(), language, "{name:?}");
            assert_eq!(Language::find(Some(language.name())).unwrap(), language);
        }
        assert!(Language::find(Some("ruby")).is_err());
    }

    #[test]
    fn node_runs_both_of_its_languages() {
        assert!(Language::JavaScript.can_run(Language::TypeScript));
        assert!(!Language::Python.can_run(Language::JavaScript));
        assert!(!Language::TypeScript.can_run(Language::Python));
    }
}
