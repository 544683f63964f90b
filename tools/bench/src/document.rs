//! The document with the tables.

use std::path::Path;

use crate::error::Error;

/// The text of one measurement.
#[derive(Debug, Default)]
pub(crate) struct Section {
    /// The name on the command line and in the document.
    pub(crate) name: &'static str,
    /// The heading.
    pub(crate) title: &'static str,
    /// The conditions of the measurement.
    pub(crate) conditions: String,
    /// The tables and verdicts.
    pub(crate) body: String,
}

impl Section {
    pub(crate) fn markdown(&self) -> String {
        format!("## {}\n\n{}\n{}\n", self.title, self.conditions, self.body.trim_end())
    }

    fn markers(&self) -> (String, String) {
        (format!("<!-- bench {} -->\n", self.name), format!("<!-- end {} -->\n", self.name))
    }
}

/// Replaces the section with the same name, or appends the section.
///
/// # Errors
/// When the file cannot be read or written. The file is unchanged, or truncated if the disk is full.
pub(crate) fn replace(path: &Path, section: &Section) -> Result<(), Error> {
    let text = std::fs::read_to_string(path).map_err(Error::at("read", path))?;
    std::fs::write(path, with(&text, section)).map_err(Error::at("write", path))
}

fn with(text: &str, section: &Section) -> String {
    let (begin, end) = section.markers();
    let new = section.markdown();
    match text.split_once(&begin).and_then(|(head, rest)| Some((head, rest.split_once(&end)?.1))) {
        Some((head, tail)) => format!("{head}{begin}{new}{end}{tail}"),
        None => format!("{}\n\n{begin}{new}{end}", text.trim_end()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_added_and_then_replaced() {
        let section = |body: &str| Section {
            name: "run",
            title: "T",
            conditions: "c\n".to_owned(),
            body: body.to_owned(),
        };
        let once = with("# Head\n", &section("old"));
        assert_eq!(once, "# Head\n\n<!-- bench run -->\n## T\n\nc\n\nold\n<!-- end run -->\n");
        let twice = with(&format!("{once}tail\n"), &section("new"));
        assert_eq!(twice, format!("{}tail\n", once.replace("old", "new")));
    }
}
