//! `/api/git/checkout`: a clone by the host's git, as an exec of the session's sandbox with a tree and a time limit of its own.

use std::path::PathBuf;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use axum::routing::post;
use penfold_control::execs::ExecEnd;
use penfold_process::quote_words;
use penfold_server::records::Outputs;
use penfold_teardown::Cause;
use serde::Deserialize;
use serde_json::json;

use crate::answer::{RouteResult, success_answer};
use crate::api::{Api, ApiState};
use crate::error::{ApiError, Code};
use crate::ids::SessionId;
use crate::processes::{self, Environment};
use crate::request::Parsed;
use crate::sessions::{self, Session};
use crate::tool::{ToolError, run_tool};

/// The time for a clone, if the request says none.
const USUAL_LIMIT: u64 = 600_000;
/// The time to ask for the branch.
const SHORT: Duration = Duration::from_secs(10);
/// The time in which a session that is ended by others ends after a command of it.
const MOMENT: Duration = Duration::from_millis(100);
/// The variable with the address.
const URL: &str = "GIT_CHECKOUT_URL";
/// The beginning of an address that would be a descriptor of this exec.
const DESCRIPTOR: &str = "fd::";
/// The longest address, as in the reference.
const LONGEST: usize = 2048;
/// The directory of a repository that the request names none for.
const WORKSPACE: &str = "/workspace";

/// The routes for git.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new().route("/api/git/checkout", post(checkout))
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CheckoutRequest {
    repo_url: String,
    branch: Option<String>,
    target_dir: Option<String>,
    session_id: Option<String>,
    depth: Option<u64>,
    timeout_ms: Option<u64>,
}

/// A repository to be cloned.
#[derive(Debug)]
struct Clone {
    url: String,
    branch: Option<String>,
    directory: String,
    depth: Option<u64>,
    limit: Duration,
}

impl CheckoutRequest {
    fn check(self) -> Result<Clone, ApiError> {
        let invalid = |field: &str, why: &str| {
            Err(ApiError::new(Code::ValidationFailed, format!("{field} {why}")).with("field", field))
        };
        let url = self.repo_url.trim().to_owned();
        if url.is_empty() || url.len() > LONGEST || url.contains('\0') || url.starts_with(DESCRIPTOR) {
            let message = format!("Invalid Git URL '{}'", without_credentials(&url));
            return Err(ApiError::new(Code::InvalidGitUrl, message));
        }
        let given = self.target_dir.filter(|dir| !dir.is_empty());
        let directory = given.unwrap_or_else(|| format!("{WORKSPACE}/{}", repository_name(&url)));
        if directory.contains('\0') || self.branch.as_ref().is_some_and(|branch| branch.contains('\0')) {
            return invalid("targetDir or branch", "has a NUL");
        }
        if self.timeout_ms == Some(0) {
            let message = "Invalid clone timeout '0': timeoutMs is at least 1";
            return Err(ApiError::new(Code::ValidationFailed, message).with("field", "timeoutMs"));
        }
        if self.depth == Some(0) {
            return invalid("depth", "is 0");
        }
        let limit = Duration::from_millis(self.timeout_ms.unwrap_or(USUAL_LIMIT));
        let branch = self.branch.filter(|branch| !branch.is_empty());
        Ok(Clone { url, branch, directory, depth: self.depth, limit })
    }
}

async fn checkout(
    State(api): State<ApiState>,
    headers: HeaderMap,
    uri: Uri,
    Parsed(request): Parsed<CheckoutRequest>,
) -> RouteResult {
    let id = SessionId::of_command(request.session_id.as_deref(), &headers, &uri)?;
    let wanted = request.check()?;
    let session = sessions::obtain(&api, &id).await?;
    let cloned = api.run({
        let session = session.clone();
        move |api| {
            wanted.carry_out(api, &session)?;
            let branch = wanted.current_branch(api, &session);
            let Clone { url, directory, .. } = wanted;
            Ok(success_answer(json!({ "repoUrl": url, "branch": branch, "targetDir": directory })))
        }
    });
    let error = match cloned.await {
        Ok(answer) => return Ok(answer),
        Err(error) => error,
    };
    // git may end before the rest of a session that is deleted, and that is the cause then.
    let _turn = api.locks.lock(id.as_str()).await;
    api.wait(move |_| if session.ends_within(MOMENT) { Err(session.destroyed()) } else { Err(error) }).await
}

impl Clone {
    fn carry_out(&self, api: &Api, session: &Session) -> Result<(), ApiError> {
        let mut words = vec!["-c", "http.lowSpeedLimit=1024", "-c", "http.lowSpeedTime=30"];
        words.extend(["clone", "--filter=blob:none"]);
        let branch = self.branch.as_ref().map(|branch| format!("--branch={branch}"));
        let depth = self.depth.map(|depth| format!("--depth={depth}"));
        words.extend(branch.iter().chain(&depth).map(String::as_str));
        // An address is never an option. It may have a password, and commands are in events.
        let command = format!("{} -- \"${URL}\" {}", git(&words), quote_words([&self.directory]));
        let (end, outputs) = self.run(api, session, &command, self.limit)?;
        let said = without_credentials(&String::from_utf8_lossy(&outputs.stderr));
        if end.cause == Some(Cause::Timeout) {
            let seconds = self.limit.as_secs_f64();
            let url = without_credentials(&self.url);
            let message = format!("Git clone timed out after {seconds} seconds for '{url}'");
            return Err(self.failed(Code::GitNetworkError, message, 124, "Operation timed out"));
        }
        let code = processes::code_of(end.exit);
        if code == 0 {
            return Ok(());
        }
        let why = if said.trim().is_empty() { format!("exit code {code}") } else { said.trim().to_owned() };
        let message = format!("Failed to clone repository '{}': {why}", without_credentials(&self.url));
        Err(self.failed(failure_code(&said, code).or_no_space(&why), message, code, &said))
    }

    /// Returns the branch that was checked out.
    fn current_branch(&self, api: &Api, session: &Session) -> String {
        let command = git(&["-C", &self.directory, "branch", "--show-current"]);
        let asked = self.run(api, session, &command, SHORT).ok();
        let named = asked.filter(|(end, _)| processes::code_of(end.exit) == 0);
        let named = named.map(|(_, outputs)| String::from_utf8_lossy(&outputs.stdout).trim().to_owned());
        let named = named.filter(|name| !name.is_empty()).or_else(|| self.branch.clone());
        named.unwrap_or_else(|| "unknown".to_owned())
    }

    /// Runs git with the environment and the directory of the session's shell, and waits until its tree is gone.
    fn run(
        &self,
        api: &Api,
        session: &Session,
        command: &str,
        limit: Duration,
    ) -> Result<(ExecEnd, Outputs), ApiError> {
        // Nobody is there who could answer a question.
        let env = [("GIT_TERMINAL_PROMPT", "0"), (URL, &self.url)];
        let env: Environment = env.map(|(name, value)| (name.to_owned(), Some(value.to_owned()))).into();
        run_tool(api, session, command, env, limit).map_err(|error| match error {
            ToolError::Session(error) => error,
            ToolError::NotRun(why) => {
                self.failed(Code::GitCloneFailed.or_no_space(&why), why.clone(), 1, &why)
            }
            ToolError::Left(error) => self.explain(error, 1, ""),
        })
    }

    fn failed(&self, code: Code, message: String, exit: i32, stderr: &str) -> ApiError {
        self.explain(ApiError::new(code, message), exit, stderr)
    }

    /// Adds what an error of a clone tells.
    fn explain(&self, error: ApiError, exit: i32, stderr: &str) -> ApiError {
        let target = PathBuf::from(&self.directory).display().to_string();
        let error = error.with("repository", without_credentials(&self.url));
        let error = error.with("targetDir", target).with("exitCode", exit).with("stderr", stderr);
        let error = self.branch.iter().fold(error, |error, branch| error.with("branch", branch.as_str()));
        error.operation("git.clone")
    }
}

/// Returns a command of git for bash, whatever functions and aliases are called.
fn git(words: &[&str]) -> String {
    format!("\\builtin command git {}", quote_words(words))
}

/// The code for what git said, as in the reference.
fn failure_code(said: &str, code: i32) -> Code {
    // bash found no git, or could not execute it.
    if matches!(code, 126 | 127) {
        return Code::GitOperationFailed;
    }
    let said = said.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| said.contains(word));
    if code == 128 {
        return if has(&["repository not found"]) && !has(&["not a git repository"]) {
            Code::GitRepositoryNotFound
        } else {
            Code::GitOperationFailed
        };
    }
    if has(&["permission denied", "access denied"]) {
        Code::GitAuthFailed
    } else if has(&["not found", "does not exist"]) {
        Code::GitRepositoryNotFound
    } else if has(&["already exists"]) {
        Code::GitCloneFailed
    } else if has(&["did not match", "pathspec"]) {
        Code::GitBranchNotFound
    } else if has(&["authentication", "credentials"]) {
        Code::GitAuthFailed
    } else {
        Code::GitCloneFailed
    }
}

/// Names the directory of a repository after its address.
fn repository_name(url: &str) -> String {
    let path = url.split_once("://").map_or(url, |(_, rest)| rest.split(['?', '#']).next().unwrap_or(rest));
    let last = path.split(['/', ':']).rfind(|part| !part.is_empty());
    last.map(|name| name.strip_suffix(".git").unwrap_or(name))
        .filter(|name| !name.is_empty())
        .unwrap_or("repository")
        .to_owned()
}

/// Replaces user and password in addresses.
fn without_credentials(text: &str) -> String {
    let mut shown = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        shown.push_str(before);
        let is_end = |c: char| c.is_whitespace() || "/\"'`<>,;{}[]".contains(c);
        let end = after.find(is_end).unwrap_or(after.len());
        let (place, tail) = after.split_at(end);
        match place.rsplit_once('@') {
            Some((_, host)) => {
                shown.push_str("******@");
                shown.push_str(host);
            }
            None => shown.push_str(place),
        }
        rest = tail;
    }
    shown + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_is_named_after_its_address() {
        for (url, name) in [
            ("https://host/user/repo.git", "repo"),
            ("https://host/user/repo", "repo"),
            ("https://host/user/repo/?x=y/z", "repo"),
            ("git@host:user/repo.git", "repo"),
            ("git@host:repo", "repo"),
            ("file:///a/b.git", "b"),
            ("/a/b", "b"),
            ("/", "repository"),
            (".git", "repository"),
        ] {
            assert_eq!(repository_name(url), name, "{url}");
        }
    }

    #[test]
    fn credentials_are_not_shown() {
        for (text, shown) in [
            ("fatal: https://me:secret@host/x: no", "fatal: https://******@host/x: no"),
            ("'https://token@host' 'http://a:b@c:80/d'", "'https://******@host' 'http://******@c:80/d'"),
            ("https://a:p@ss@host/x", "https://******@host/x"),
            ("https://host/a@b and me@host", "https://host/a@b and me@host"),
            ("ssh://git@host/x", "ssh://******@host/x"),
            ("", ""),
        ] {
            assert_eq!(without_credentials(text), shown);
        }
    }

    #[test]
    fn what_git_says_has_the_codes_of_the_reference() {
        for (said, code, word) in [
            ("remote: Repository not found.", 128, Code::GitRepositoryNotFound),
            ("fatal: repository '/x' does not exist", 128, Code::GitOperationFailed),
            ("Permission denied (publickey)", 1, Code::GitAuthFailed),
            ("fatal: destination path 'x' already exists", 1, Code::GitCloneFailed),
            ("pathspec 'x' did not match", 1, Code::GitBranchNotFound),
            ("", 7, Code::GitCloneFailed),
            ("bash: line 3: git: command not found", 127, Code::GitOperationFailed),
        ] {
            assert_eq!(failure_code(said, code), word, "{said}");
        }
    }
}
