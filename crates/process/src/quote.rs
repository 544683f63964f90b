//! Command lines for people.

use std::borrow::Cow;

use shlex::Quoter;

/// Joins the words of a command as a shell would read them.
pub fn quote_words<W: AsRef<str>>(words: impl IntoIterator<Item = W>) -> String {
    let quoter = Quoter::new().allow_nul(true);
    let mut text = String::new();
    for word in words {
        if !text.is_empty() {
            text.push(' ');
        }
        // Only a NUL is an error, and it is allowed.
        text.push_str(&quoter.quote(word.as_ref()).unwrap_or(Cow::Borrowed(word.as_ref())));
    }
    text
}

/// The command line in the text of `/proc/<pid>/cmdline`; `None` if there is none.
///
/// A single word with blanks is a title that the process gave itself, and stays as it is.
pub fn quoted_cmdline(text: &[u8]) -> Option<String> {
    let end = text.iter().rposition(|&byte| byte != 0)? + 1;
    let text = String::from_utf8_lossy(text.get(..end)?);
    Some(if text.contains('\0') { quote_words(text.split('\0')) } else { text.into_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_a_shell_needs_it() {
        assert_eq!(quote_words(["sleep", "1000"]), "sleep 1000");
        assert_eq!(quote_words(["sh", "-c", "a; b", "", "it's"]), r#"sh -c 'a; b' '' "it's""#);
        assert_eq!(quote_words(Vec::<String>::new()), "");
    }

    #[test]
    fn a_title_stays_as_it_is() {
        assert_eq!(quoted_cmdline(b"sh\0-c\0a  b\0").as_deref(), Some("sh -c 'a  b'"));
        assert_eq!(
            quoted_cmdline(b"nginx: master process nginx\0\0\0").as_deref(),
            Some("nginx: master process nginx")
        );
        assert_eq!(quoted_cmdline(b"sh\0-c\0").as_deref(), Some("sh -c"));
        assert_eq!(quoted_cmdline(b"\0\0"), None);
    }
}
