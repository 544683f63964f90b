//! `/api/backup/*`: a directory of the host as a tar archive, by the host's tar, in the sandbox of the session.

mod obstacle;

use std::fs;
use std::io::ErrorKind;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::routing::post;
use penfold_process::path_text::{path_of_text, path_text};
use penfold_process::quote_words;
use penfold_server::records::Outputs;
use penfold_state::clear::clear_directory;
use penfold_teardown::Cause;
use rustix::fs::{Mode, OFlags};
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

use self::obstacle::find_obstacle;

/// The time for an archive.
const LIMIT: Duration = Duration::from_mins(30);
/// The time in which a session that is ended by others ends after a command of it.
const MOMENT: Duration = Duration::from_millis(100);
/// The longest path.
const LONGEST: usize = 4096;
/// The variables with the paths, and with the place where an archive is written, or unpacked, until it is whole.
const DIR: &str = "PENFOLD_BACKUP_DIR";
const ARCHIVE: &str = "PENFOLD_BACKUP_ARCHIVE";
const STAGE: &str = "PENFOLD_BACKUP_STAGE";

/// Programs for bash, in the environment of the session.
const COMMON: &str = include_str!("backup/common.sh");
const CREATE: &str = include_str!("backup/create.sh");
const RESTORE: &str = include_str!("backup/restore.sh");
/// Finds the files that git ignores, which are left out.
const FIND_IGNORED: &str = r#"ignored=$(\builtin command git -C "$PENFOLD_BACKUP_DIR" -c core.quotePath=false \
    ls-files --others --ignored --exclude-standard --directory 2> /dev/null | \builtin command sed 's:/*$::; s:^:./:')
"#;

/// The routes for backups.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new()
        .route("/api/backup/create", post(create))
        .route("/api/backup/restore", post(restore))
        .route("/api/backup/upload-parts", post(upload_parts))
}

/// The routes that clients from 0.13 on call, too. Only calls over `/rpc` reach them.
pub(crate) fn call_routes() -> Router<ApiState> {
    Router::new().route("/rpc/backup/prepare", post(prepare)).route("/rpc/backup/cleanup", post(clean_up))
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CreateRequest {
    dir: String,
    archive_path: String,
    #[serde(default)]
    gitignore: bool,
    #[serde(default)]
    excludes: Vec<String>,
    compression: Option<Compression>,
    session_id: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Compression {
    format: Option<Format>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Format {
    Gzip,
    Lz4,
    Zstd,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RestoreRequest {
    dir: String,
    archive_path: String,
    session_id: Option<String>,
}

/// A directory and its archive.
#[derive(Debug)]
struct Backup {
    dir: String,
    archive: String,
    /// Where it is written, or unpacked, until it is whole.
    stage: PathBuf,
    failure: Code,
    operation: &'static str,
}

async fn create(
    State(api): State<ApiState>,
    headers: HeaderMap,
    uri: Uri,
    Parsed(request): Parsed<CreateRequest>,
) -> RouteResult {
    let id = SessionId::of_command(request.session_id.as_deref(), &headers, &uri)?;
    let backup = Backup {
        dir: request.dir,
        stage: stage(Path::new(&request.archive_path).parent(), "backup"),
        archive: request.archive_path,
        failure: Code::BackupCreateFailed,
        operation: "backup.create",
    };
    backup.check()?;
    let compressed = match request.compression.and_then(|compression| compression.format) {
        None => None,
        Some(Format::Gzip) => Some("--gzip".to_owned()),
        Some(Format::Lz4) => Some("--use-compress-program=lz4".to_owned()),
        Some(Format::Zstd) => Some("--zstd".to_owned()),
    };
    let left_out = request.excludes.iter().filter_map(|pattern| exclude(pattern));
    let words = quote_words(compressed.into_iter().chain(left_out));
    let ignored = if request.gitignore { FIND_IGNORED } else { "ignored=\n" };
    let command = format!("{COMMON}words=({words})\n{ignored}{CREATE}");
    let archive = backup.archive.clone();
    let said = backup.carry_out(&api, &id, command).await?;
    let size: u64 = String::from_utf8_lossy(&said.stdout).trim().parse().unwrap_or(0);
    Ok(success_answer(json!({ "sizeBytes": size, "archivePath": archive })))
}

async fn restore(
    State(api): State<ApiState>,
    headers: HeaderMap,
    uri: Uri,
    Parsed(request): Parsed<RestoreRequest>,
) -> RouteResult {
    let id = SessionId::of_command(request.session_id.as_deref(), &headers, &uri)?;
    let backup = Backup {
        stage: stage(Some(Path::new(&request.dir)), "restore"),
        dir: request.dir,
        archive: request.archive_path,
        failure: Code::BackupRestoreFailed,
        operation: "backup.restore",
    };
    backup.check()?;
    if is_below(&backup.archive, &backup.dir) {
        return Err(backup.invalid("archivePath must not be in dir, whose content is replaced"));
    }
    let (dir, looked) = (backup.dir.clone(), PathBuf::from(&backup.dir));
    if let Some(obstacle) = api.wait(move |_| Ok(find_obstacle(&looked))).await? {
        return Err(backup.failed(&obstacle));
    }
    backup.carry_out(&api, &id, format!("{COMMON}{RESTORE}")).await?;
    Ok(success_answer(json!({ "dir": dir })))
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ArchiveRequest {
    archive_path: String,
}

/// Tells how large the archive is that a restore would find; 0 if there is none.
async fn prepare(State(api): State<ApiState>, Parsed(request): Parsed<ArchiveRequest>) -> RouteResult {
    let backup = Backup::of_archive(request, Code::BackupRestoreFailed, "backup.restore")?;
    api.call(move |_| match fs::metadata(&backup.archive) {
        Ok(metadata) => Ok(success_answer(json!({ "existingSize": metadata.len() }))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(success_answer(json!({ "existingSize": 0 }))),
        Err(error) => Err(backup.failed(&error.to_string())),
    })
    .await
}

/// Removes an archive. One that is missing is no error.
async fn clean_up(State(api): State<ApiState>, Parsed(request): Parsed<ArchiveRequest>) -> RouteResult {
    let backup = Backup::of_archive(request, Code::BackupCreateFailed, "backup.create")?;
    api.call(move |_| match fs::symlink_metadata(&backup.archive) {
        Ok(metadata) if !metadata.is_file() => {
            Err(backup.failed(&format!("{} is no plain file", backup.archive)))
        }
        _ => match fs::remove_file(&backup.archive) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(backup.failed(&error.to_string())),
            _ => Ok(success_answer(json!({}))),
        },
    })
    .await
}

/// Refuses to send an archive elsewhere: clients ask for that with a bucket of the platform.
async fn upload_parts(_read: Bytes) -> ApiError {
    let message =
        "penfold sends no archive to a bucket; read it with `readFileStream`, or keep it on this host";
    ApiError::new(Code::BackupCreateFailed, message).status(StatusCode::NOT_IMPLEMENTED)
}

impl Backup {
    /// Removes what a tool has left that failed, or was ended with its session. Old content of a directory stays: returns where it is.
    fn clear(&self) -> Option<String> {
        let _ = fs::remove_file(&self.stage);
        let old = self.stage.join("old");
        if fs::read_dir(&old).is_ok_and(|mut entries| entries.next().is_some()) {
            return Some(path_text(&old));
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if let Ok(stage) = rustix::fs::open(&self.stage, flags, Mode::empty()) {
            let _ = clear_directory(stage.as_fd(), &[]);
            let _ = fs::remove_dir(&self.stage);
        }
        None
    }

    /// An archive for which the directory does not matter.
    fn of_archive(
        request: ArchiveRequest,
        failure: Code,
        operation: &'static str,
    ) -> Result<Backup, ApiError> {
        let backup = Backup {
            dir: "/".to_owned(),
            stage: PathBuf::new(),
            archive: request.archive_path,
            failure,
            operation,
        };
        backup.check().map(|()| backup)
    }

    fn invalid(&self, why: &str) -> ApiError {
        let error = ApiError::new(Code::InvalidBackupConfig, why).operation(self.operation);
        error.with("dir", self.dir.as_str()).with("archivePath", self.archive.as_str())
    }

    fn check(&self) -> Result<(), ApiError> {
        for (field, path) in [("dir", &self.dir), ("archivePath", &self.archive)] {
            let why = if path.is_empty() {
                "is missing"
            } else if path.len() > LONGEST {
                "is longer than 4096 bytes"
            } else if !path.starts_with('/') {
                "must be an absolute path"
            } else if path.split('/').any(|part| part == "..") {
                "must have no `..`"
            } else if path.contains('\0') {
                "has a NUL"
            } else if path_of_text(path) != Path::new(path) {
                "has a name that is not UTF-8, which backups do not take"
            } else {
                continue;
            };
            return Err(self.invalid(&format!("{field} {why}")));
        }
        Ok(())
    }

    async fn carry_out(self, api: &ApiState, id: &SessionId, command: String) -> Result<Outputs, ApiError> {
        let session = sessions::obtain(api, id).await?;
        let backup = Arc::new(self);
        let done = api.run({
            let (session, backup) = (session.clone(), Arc::clone(&backup));
            move |api| backup.run(api, &session, &command)
        });
        let error = match done.await {
            Ok(said) => return Ok(said),
            Err(error) => error,
        };
        // tar may end before the rest of a session that is deleted, and that is the cause then.
        let _turn = api.locks.lock(id.as_str()).await;
        api.wait(move |_| {
            let error = if session.ends_within(MOMENT) { session.destroyed() } else { error };
            Err(backup.clear().into_iter().fold(error, |error, left| error.with("left", left)))
        })
        .await
    }

    fn run(&self, api: &Api, session: &Session, command: &str) -> Result<Outputs, ApiError> {
        let stage = self.stage.display().to_string();
        let env = [(DIR, &self.dir), (ARCHIVE, &self.archive), (STAGE, &stage)];
        let env: Environment = env.map(|(name, value)| (name.to_owned(), Some(value.clone()))).into();
        let (end, said) = run_tool(api, session, command, env, LIMIT).map_err(|error| match error {
            ToolError::Session(error) => error,
            ToolError::NotRun(why) => self.failed(&why),
            ToolError::Left(error) => error.operation(self.operation),
        })?;
        let code = processes::code_of(end.exit);
        if code == 0 {
            return Ok(said);
        }
        let why = String::from_utf8_lossy(&said.stderr).trim().to_owned();
        let why = if why.is_empty() { format!("exit code {code}") } else { why };
        Err(match end.cause {
            Some(Cause::Timeout) => self.failed("it took longer than 30 minutes"),
            _ => self.failed(&why),
        })
    }

    fn failed(&self, why: &str) -> ApiError {
        // What tar says of a full disk.
        let is_full = why.contains("Wrote only ");
        let code = if is_full { Code::NoSpace } else { self.failure.or_no_space(why) };
        let error = ApiError::new(code, why).operation(self.operation);
        error.with("dir", self.dir.as_str()).with("archivePath", self.archive.as_str())
    }
}

/// Returns a path below a directory that nothing else has.
fn stage(dir: Option<&Path>, what: &str) -> PathBuf {
    let mut random = [0; 16];
    let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
    let name = format!(".penfold-{what}-{:032x}", u128::from_le_bytes(random));
    dir.unwrap_or(Path::new("/")).join(name)
}

/// Returns the word for tar that leaves out what a pattern of the reference means; `None` if that is nothing.
fn exclude(pattern: &str) -> Option<String> {
    let mut pattern = pattern.trim_start_matches("**/").replace("/**/", "/");
    while let Some(shorter) = pattern.strip_suffix("/**") {
        pattern.truncate(shorter.len());
    }
    let is_none = pattern.is_empty() || pattern == "**" || pattern.contains('\0');
    (!is_none).then(|| format!("--exclude={pattern}"))
}

fn is_below(path: &str, dir: &str) -> bool {
    Path::new(path).starts_with(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_the_reference_are_patterns_of_tar() {
        for (pattern, word) in [
            ("node_modules", Some("--exclude=node_modules")),
            ("**/node_modules/**", Some("--exclude=node_modules")),
            ("a/**/b", Some("--exclude=a/b")),
            ("**/**/*.log", Some("--exclude=*.log")),
            ("--checkpoint-action=exec=x", Some("--exclude=--checkpoint-action=exec=x")),
            ("**", None),
            ("", None),
        ] {
            assert_eq!(exclude(pattern).as_deref(), word, "{pattern}");
        }
    }
}
