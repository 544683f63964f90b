//! The tokens of callers, and for whom each stands.

use std::fs::File;
use std::hint::black_box;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;

use penfold_api::{LONGEST_TOKEN, SHORTEST_TOKEN, TokenLine, is_token_byte};
use penfold_state::names;
use sha2::{Digest as _, Sha256};

/// For whom a token stands: what is made with it belongs to the tenant, and only that is reached with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant {
    /// The name; `None` for the only token of a server, if that has no name: then nobody is to be told apart.
    pub name: Option<String>,
    /// The name that a token without one has beside others.
    pub unnamed: Option<String>,
    /// Whether everything is reached.
    pub is_admin: bool,
    /// Whether there is no other tenant, so that what belongs to nobody is reached, too.
    pub is_alone: bool,
    /// The most living sandboxes, if the line says so.
    pub sandboxes: Option<usize>,
}

/// A token.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    secret: Vec<u8>,
    /// For whom it stands.
    pub tenant: Arc<Tenant>,
    /// Whether it is good for looking only.
    pub is_read_only: bool,
}

/// The tokens of callers.
#[derive(Clone, Default)]
pub struct Tokens(Vec<Token>);

/// Text that is no list of tokens.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTokens {
    /// There is no token.
    #[error("it has no token; a token is a line of at least {SHORTEST_TOKEN} characters")]
    Missing,
    /// A line is not text.
    #[error("line {0} is not UTF-8")]
    Text(usize),
    /// A token is too short or too long.
    #[error("line {0}: a token has {SHORTEST_TOKEN} to {LONGEST_TOKEN} characters")]
    Length(usize),
    /// A token has a character that cannot be in a URL.
    #[error("line {0}: a token consists of letters, digits, `-`, `.`, `_` and `~`")]
    Character(usize),
    /// The name of a tenant is none.
    #[error("line {line}: the name of a tenant is {}, and does not begin with `{UNNAMED}`", names::NAME_RULE)]
    Name {
        /// The line.
        line: usize,
    },
    /// A word after the token has no meaning.
    #[error("line {line}: `{word}` is not one of `admin`, `read-only` and `max-sandboxes=N` (1 to 1000000)")]
    Option {
        /// The line.
        line: usize,
        /// The word.
        word: String,
    },
    /// A token is on two lines that differ.
    #[error("line {0}: the token is on an earlier line, too, and means something else there")]
    Repeated(usize),
    /// A word after the token is there twice.
    #[error("line {line}: `{word}` is there twice")]
    Twice {
        /// The line.
        line: usize,
        /// The word.
        word: String,
    },
    /// A token without a name has options: a name whose token was forgotten would be one.
    #[error("line {0}: a token with options needs the name of its tenant before it")]
    Unnamed(usize),
    /// A tenant has two sets of rights.
    #[error("line {line}: `{name}` has another `admin` or `max-sandboxes` on an earlier line")]
    Differs {
        /// The line.
        line: usize,
        /// The name of the tenant.
        name: String,
    },
}

/// A file from which no tokens were read.
#[derive(Debug, thiserror::Error)]
pub enum ReadTokensError {
    /// The file cannot be read.
    #[error(transparent)]
    Read(#[from] io::Error),
    /// The file is no list of tokens.
    #[error(transparent)]
    Invalid(#[from] InvalidTokens),
}

/// The longest file that is read.
const LONGEST_FILE: u64 = 1 << 20;
/// The most sandboxes that a line can allow.
const MOST_SANDBOXES: usize = 1_000_000;

impl Tokens {
    /// Reads a file: a token on each line.
    ///
    /// # Errors
    /// When the file cannot be read, or is no list of tokens.
    pub fn read(path: &Path) -> Result<Tokens, ReadTokensError> {
        let mut text = Vec::new();
        let length = File::open(path)?.take(LONGEST_FILE + 1).read_to_end(&mut text)?;
        // Its last token would be cut off.
        if u64::try_from(length).is_ok_and(|length| length > LONGEST_FILE) {
            return Err(ReadTokensError::Read(io::ErrorKind::FileTooLarge.into()));
        }
        Ok(Tokens::parse(&text)?)
    }

    /// Reads a file anew while the server runs: a pipe would have nothing more, or keep the reader waiting for ever.
    ///
    /// # Errors
    /// As [`Tokens::read`], and when it is no regular file.
    pub(crate) fn read_again(path: &Path) -> Result<Tokens, ReadTokensError> {
        if !std::fs::metadata(path)?.is_file() {
            return Err(ReadTokensError::Read(io::Error::other("it is no file that can be read again")));
        }
        Tokens::read(path)
    }

    /// Reads a list of tokens: on each line `TOKEN` or `NAME TOKEN`, and then any of `admin`, `read-only` and
    /// `max-sandboxes=N`. Empty lines and lines that begin with `#` are skipped. Lines with one name are of one tenant; a token
    /// without a name is a tenant of its own.
    ///
    /// # Errors
    /// When there is no token, or a line that cannot be followed.
    pub fn parse(text: &[u8]) -> Result<Tokens, InvalidTokens> {
        let mut lines: Vec<Token> = Vec::new();
        let mut has_names = false;
        for (index, line) in text.split(|&byte| byte == b'\n').enumerate() {
            let number = index + 1;
            let line = std::str::from_utf8(line).map_err(|_| InvalidTokens::Text(number))?;
            let Some(line) = TokenLine::parse(line) else { continue };
            has_names |= line.name.is_some();
            let token = read_line(&line, number)?;
            if let Some(same) = lines.iter().find(|earlier| earlier.secret == token.secret) {
                if *same == token {
                    continue;
                }
                return Err(InvalidTokens::Repeated(number));
            }
            lines.push(token);
            unite(&mut lines, number)?;
        }
        let first = lines.first().ok_or(InvalidTokens::Missing)?.tenant.name.clone();
        let is_alone = lines.iter().all(|token| token.tenant.name == first);
        for token in &mut lines {
            let name = token.tenant.name.clone().filter(|_| has_names || !is_alone);
            token.tenant = Arc::new(Tenant { name, is_alone, ..(*token.tenant).clone() });
        }
        Ok(Tokens(lines))
    }

    /// Tells whether a tenant of this name has a token, also as the only tenant, or nobody needs one.
    pub fn has_tenant(&self, name: &str) -> bool {
        let is_it = |tenant: &Tenant| {
            tenant.name.as_deref().is_none_or(|own| own == name) || tenant.unnamed.as_deref() == Some(name)
        };
        self.is_empty() || self.0.iter().any(|token| is_it(&token.tenant))
    }

    /// Tells whether there is no token.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the tokens of a tenant, in an order that does not depend on their lines.
    pub(crate) fn of(&self, tenant: &Tenant) -> Vec<&Token> {
        let mut tokens: Vec<&Token> = self.0.iter().filter(|token| *token.tenant == *tenant).collect();
        tokens.sort_unstable_by(|one, other| one.secret.cmp(&other.secret));
        tokens
    }

    /// Who has the sandboxes that belong to no tenant, for people; `None` if that needs no word.
    pub(crate) fn unowned_reached_by(&self) -> Option<String> {
        let first = self.0.first()?;
        let name = first.tenant.name.as_ref()?;
        Some(if first.tenant.is_alone {
            format!("the only tenant, {name}")
        } else if self.0.iter().any(|token| token.tenant.is_admin) {
            "admins only".to_owned()
        } else {
            "the Unix socket only: no token is an admin's".to_owned()
        })
    }

    /// Tells whether a text is a token with which everything may be done.
    pub fn has_whole(&self, given: &[u8]) -> bool {
        self.find(given).is_some_and(|token| {
            let tenant = &token.tenant;
            !token.is_read_only
                && (tenant.is_admin || tenant.is_alone || tenant.name.is_none() && tenant.unnamed.is_none())
        })
    }

    /// Finds a token. The time depends on the length of `given` and the number of tokens only.
    pub fn find(&self, given: &[u8]) -> Option<&Token> {
        let mut found = 0;
        for (index, token) in self.0.iter().enumerate() {
            let place = if is_equal(&token.secret, given) { index + 1 } else { 0 };
            found = black_box(found | place);
        }
        self.0.get(found.checked_sub(1)?)
    }
}

/// The beginning of the name of a token without one.
const UNNAMED: &str = "token-";

/// Makes the last line and the earlier ones of its tenant one: what only one of them says counts for all.
fn unite(lines: &mut [Token], number: usize) -> Result<(), InvalidTokens> {
    let Some((last, earlier)) = lines.split_last_mut() else { return Ok(()) };
    let mut same: Vec<&mut Token> =
        earlier.iter_mut().filter(|one| one.tenant.name == last.tenant.name).collect();
    let Some(before) = same.first().map(|one| Arc::clone(&one.tenant)) else { return Ok(()) };
    let (is_admin, given) = (last.tenant.is_admin, last.tenant.sandboxes);
    let differs = given.is_some() && before.sandboxes.is_some() && given != before.sandboxes;
    if differs || is_admin != before.is_admin {
        let name = before.name.clone().unwrap_or_default();
        return Err(InvalidTokens::Differs { line: number, name });
    }
    let tenant = Arc::new(Tenant { sandboxes: before.sandboxes.or(given), ..(*before).clone() });
    for token in same.iter_mut().map(|token| &mut **token).chain([last]) {
        token.tenant = Arc::clone(&tenant);
    }
    Ok(())
}

/// Reads a line, as if there were others.
fn read_line(line: &TokenLine<'_>, number: usize) -> Result<Token, InvalidTokens> {
    let TokenLine { name, token, options } = line;
    if !token.bytes().all(is_token_byte) {
        return Err(InvalidTokens::Character(number));
    }
    if !(SHORTEST_TOKEN..=LONGEST_TOKEN).contains(&token.len()) {
        return Err(InvalidTokens::Length(number));
    }
    if name.is_some_and(|name| !names::is_name(name) || name.starts_with(UNNAMED)) {
        return Err(InvalidTokens::Name { line: number });
    }
    if name.is_none() && !options.is_empty() {
        return Err(InvalidTokens::Unnamed(number));
    }
    let mut tenant = Tenant {
        name: Some(name.map_or_else(|| unnamed(token), str::to_owned)),
        unnamed: name.is_none().then(|| unnamed(token)),
        is_admin: false,
        is_alone: false,
        sandboxes: None,
    };
    let mut is_read_only = false;
    for (index, &word) in options.iter().enumerate() {
        let key = word.split('=').next();
        if options.iter().take(index).any(|earlier| earlier.split('=').next() == key) {
            return Err(InvalidTokens::Twice { line: number, word: word.to_owned() });
        }
        let most = word.strip_prefix("max-sandboxes=").and_then(|most| most.parse().ok());
        match (word, most.filter(|most| (1..=MOST_SANDBOXES).contains(most))) {
            ("admin", _) => tenant.is_admin = true,
            ("read-only", _) => is_read_only = true,
            (_, Some(most)) => tenant.sandboxes = Some(most),
            (word, None) => return Err(InvalidTokens::Option { line: number, word: word.to_owned() }),
        }
    }
    Ok(Token { secret: token.as_bytes().to_owned(), tenant: Arc::new(tenant), is_read_only })
}

/// Names the tenant of a token without a name: always the same, wherever its line is, and of no use for finding the token.
fn unnamed(token: &str) -> String {
    let hash = Sha256::digest(token.as_bytes());
    let number = hash.iter().take(6).fold(0_u64, |number, &byte| number << 8 | u64::from(byte));
    format!("{UNNAMED}{number:012x}")
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a token of {:?}", self.tenant.name)
    }
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} tokens", self.0.len())
    }
}

/// Compares without a branch that depends on a byte.
fn is_equal(token: &[u8], given: &[u8]) -> bool {
    let mut differs = u8::from(token.len() != given.len());
    for (byte, own) in given.iter().zip(token.iter().cycle()) {
        differs = black_box(differs | (byte ^ own));
    }
    black_box(differs) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "0123456789abcdef";
    const TWO: &str = "fedcba9876543210~";

    fn parse(text: &str) -> Result<Tokens, InvalidTokens> {
        Tokens::parse(text.as_bytes())
    }

    #[test]
    fn a_token_is_found_whole_and_exact() {
        let tokens = parse("# ours\n0123456789abcdef\n\n  fedcba9876543210~  \r\n").unwrap();
        let name =
            |given: &str| tokens.find(given.as_bytes()).map(|token| token.tenant.name.clone().unwrap());
        assert_ne!(name(ONE), name(TWO));
        assert!(name(ONE).is_some() && name(TWO).is_some());
        for wrong in
            [&b""[..], b"0", b"0123456789abcde", b"0123456789abcdef0", b"0123456789abcdeg", b"# ours"]
        {
            assert_eq!(tokens.find(wrong), None);
        }
        let twice = b"0123456789abcdef0123456789abcdef";
        assert_eq!(tokens.find(twice), None);
        assert_eq!(Tokens::default().find(b""), None);
    }

    #[test]
    fn equal_tokens_on_two_lines_are_one() {
        let tokens = parse("0123456789abcdef\n0123456789abcdef\n").unwrap();
        let tenant = &tokens.find(ONE.as_bytes()).unwrap().tenant;
        assert_eq!(
            (tenant.name.as_deref(), tenant.is_alone),
            (None, true),
            "one token without a name is nobody's"
        );
    }

    #[test]
    fn lines_of_one_name_are_one_tenant_and_say_what_a_token_is_good_for() {
        let text = format!("alice {ONE} max-sandboxes=3\nalice {TWO} read-only\nops {ONE}{TWO} admin\n");
        let tokens = parse(&text).unwrap();
        let found = |given: &str| tokens.find(given.as_bytes()).unwrap();
        assert_eq!(found(ONE).tenant, found(TWO).tenant);
        assert!(!found(ONE).is_read_only && found(TWO).is_read_only);
        let Tenant { name, is_admin, is_alone, sandboxes, .. } = &*found(ONE).tenant;
        assert_eq!(
            (name.as_deref(), *is_admin, *is_alone, *sandboxes),
            (Some("alice"), false, false, Some(3))
        );
        assert!(found(&format!("{ONE}{TWO}")).tenant.is_admin);
        let alone = parse(&format!("alice {ONE}\nalice {TWO}")).unwrap();
        assert!(alone.find(ONE.as_bytes()).unwrap().tenant.is_alone);
    }

    #[test]
    fn a_file_without_a_good_token_is_refused() {
        assert_eq!(parse("\n# none\n").unwrap_err(), InvalidTokens::Missing);
        assert_eq!(parse("\nshort").unwrap_err(), InvalidTokens::Length(2));
        assert_eq!(parse("0123456789abcde/").unwrap_err(), InvalidTokens::Character(1));
        assert_eq!(parse("0123456789abcde\0").unwrap_err(), InvalidTokens::Character(1));
        assert_eq!(parse(&format!("a/b {ONE}")).unwrap_err(), InvalidTokens::Name { line: 1 });
        for word in
            ["readonly", "max-sandboxes=", "max-sandboxes=0", "max-sandboxes=-1", "max-sandboxes=1000001"]
        {
            let error = parse(&format!("\nalice {ONE} {word}")).unwrap_err();
            assert_eq!(error, InvalidTokens::Option { line: 2, word: word.to_owned() });
        }
        assert_eq!(parse(&format!("a {ONE}\nb {ONE}")).unwrap_err(), InvalidTokens::Repeated(2));
        assert_eq!(parse(&format!("a {ONE}\na {ONE} read-only")).unwrap_err(), InvalidTokens::Repeated(2));
        // A name whose token was forgotten is no token of an admin.
        assert_eq!(parse("continuous-integration admin").unwrap_err(), InvalidTokens::Unnamed(1));
        assert_eq!(parse(&format!("token-0123456789ab {ONE}")).unwrap_err(), InvalidTokens::Name { line: 1 });
        let twice = parse(&format!("a {ONE} max-sandboxes=1 max-sandboxes=3")).unwrap_err();
        assert_eq!(twice, InvalidTokens::Twice { line: 1, word: "max-sandboxes=3".to_owned() });
        let limits = parse(&format!("a {ONE} max-sandboxes=1\na {TWO} max-sandboxes=2")).unwrap_err();
        assert_eq!(limits, InvalidTokens::Differs { line: 2, name: "a".to_owned() });
        let differs = InvalidTokens::Differs { line: 2, name: "a".to_owned() };
        assert_eq!(parse(&format!("a {ONE}\na {TWO} admin")).unwrap_err(), differs);
    }

    #[test]
    fn the_order_of_lines_changes_no_tenant() {
        let [one, other] = [[ONE, TWO], [TWO, ONE]]
            .map(|[a, b]| parse(&format!("alice {a}\nbob {ONE}{TWO}\nalice {b}")).unwrap());
        let tenant = &one.find(ONE.as_bytes()).unwrap().tenant;
        assert_eq!(one.of(tenant), other.of(tenant));
    }

    #[test]
    fn a_file_that_is_too_long_is_refused_as_a_whole() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let line = format!("{}\n", "x".repeat(63));
        std::fs::write(file.path(), line.repeat(16384)).unwrap();
        assert!(Tokens::read(file.path()).is_ok());
        std::fs::write(file.path(), line.repeat(16384) + "y").unwrap();
        assert!(matches!(Tokens::read(file.path()), Err(ReadTokensError::Read(_))));
    }

    #[test]
    fn tokens_are_not_printed() {
        let tokens = parse(ONE).unwrap();
        assert_eq!(format!("{tokens:?}"), "1 tokens");
        assert!(!format!("{:?}", tokens.find(ONE.as_bytes())).contains(ONE));
        let named = parse(&format!("{ONE}\n{TWO}")).unwrap();
        let name = named.find(ONE.as_bytes()).unwrap().tenant.name.clone().unwrap();
        assert!(name.len() == 18 && !name.contains("0123"), "{name}");
    }
}
