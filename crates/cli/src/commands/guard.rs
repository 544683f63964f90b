//! `penfold guard`: runs tests, ends what they leave behind, and names it.

mod github;
mod host_snapshot;
mod junit;
mod report;

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use penfold_launch::EndedSandbox;
use penfold_launch::caller::Codes;
use penfold_process::path_text::path_text;
use penfold_request::{Containment, SandboxSpec};
use penfold_state::{DescribedProcess, ExitStatus, Report, ReportFile, Spec};
use penfold_teardown::{Cause, SpareRule};
use rustix::fs::MemfdFlags;

use self::host_snapshot::HostSnapshot;
use super::reap;
use super::run;
use super::run::request::millis;
use crate::args::event_log::EventLogArgs;
use crate::args::patience::Patience;
use crate::args::usage;
use crate::args::verb::{Global, Places, Verb};
use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::text::summary;
use crate::{output, value, variables};

/// The verb `guard`.
pub(crate) const VERB: Verb = Verb {
    name: "guard",
    aliases: &[],
    about: "Run tests; name and end every process that they leave",
    description: "Runs a test command in a sandbox with a temporary directory of its own. Whatever ends the tests, every process \
        that they started is ended and verified gone, and the directory is removed. PENFOLD_TEST_HOME_BASE names a directory in it for \
        the homes of tests: see `penfold reap --home`. Processes that outlive the tests and do not \
        end by themselves within --grace are leaks. Each is named with its command, age, parents, test, ports and open \
        files. The exit code is that of the tests, or 123 if the tests passed and leaked. pytest, cargo-nextest and Bazel tell \
        the name of the test; others can set PENFOLD_TEST. In GitHub Actions each leak is an annotation, and the summary of \
        the step lists them.",
    examples: &[
        ("penfold guard -- pytest -n 8", "exit with 123 if the tests passed and left processes"),
        (
            "penfold guard --leaks warn --junit leaks.xml -- cargo nextest run",
            "only name what is left, also for a CI server",
        ),
        (
            "penfold guard --ignore sccache -- cargo test",
            "leave the server of sccache alone; it is listed, and is no leak",
        ),
        (
            "penfold guard --quiet-exit -- ./stop-servers",
            "exit with the code of the command, whatever is left; in an EXIT trap: --quiet-exit=$?",
        ),
        (
            "penfold guard --report leaks.json --timeout 20m -- npm test",
            "keep the details, also if guard itself is killed",
        ),
    ],
    usage_failure: FailureKind::NotStarted,
    define: GuardArgs::augment_args,
    places: Places::Hosts,
    call: |global, matches| guard(global, &usage::read(&VERB, matches)?, Tests::All),
};

/// The verb `guard-each`.
pub(crate) const EACH: Verb = Verb {
    name: "guard-each",
    aliases: &[],
    about: "Run one test, as a wrapper that a test runner puts around each",
    description: "Runs one test as `guard` does, and says something only if the test leaks. For the wrapper scripts of \
        cargo-nextest, `go test -exec`, `bazel test --run_under` and CARGO_TARGET_*_RUNNER: each test is cleaned up when it ends, and \
        fails with 123 if it passed and leaked. See docs/guard.md.",
    examples: &[
        ("penfold guard-each -- ./unit-tests --exact login", "one test of a runner"),
        (
            "penfold guard-each --grace 100ms --leaks warn -- ./unit-tests",
            "only name what is left after a tenth of a second",
        ),
    ],
    usage_failure: FailureKind::NotStarted,
    define: GuardArgs::augment_args,
    places: Places::Hosts,
    call: |global, matches| guard(global, &usage::read(&EACH, matches)?, Tests::One),
};

/// The variable with the directory for homes of tests, and the name of this directory.
const HOME_BASE: &str = "PENFOLD_TEST_HOME_BASE";
const HOMES: &str = "homes";

/// What the command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tests {
    /// All tests: the end is told, and what appeared on the host.
    All,
    /// One of many.
    One,
}

/// The arguments of `penfold guard`.
#[derive(Args, Clone, Debug)]
pub(crate) struct GuardArgs {
    /// What a leak does: fail (exit with 123 if the tests passed), or warn.
    #[arg(long, value_enum, value_name = "ACT", default_value = "fail", hide_possible_values = true)]
    leaks: OnLeak,
    /// Time that processes have to end by themselves after the tests, before they are leaks.
    #[arg(
        short = 't',
        long,
        value_name = "DURATION",
        value_parser = value::duration,
        allow_hyphen_values = true,
        default_value = "2s"
    )]
    grace: Duration,
    #[arg(
        long,
        value_name = "FILE",
        help = "Write the report to this file, as JSON, even if guard itself is killed; `leaks` lists what was left, - is standard \
            output after the tests"
    )]
    report: Option<PathBuf>,
    #[arg(
        long,
        value_name = "FILE",
        help = "Write the leaks to this file, as JUnit XML: a failed case for each test that leaked; - is standard output"
    )]
    junit: Option<PathBuf>,
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = value::duration,
        allow_hyphen_values = true,
        help = "End the tests after this time: TERM, 10 s later KILL; 0 means no limit"
    )]
    timeout: Option<Duration>,
    #[arg(
        long,
        visible_alias = "spare",
        value_name = "RULE",
        value_parser = value::spare_rule,
        help = "Leave daemons alone, and list them: NAME or PATH of the executable file, NAME:WORD with a word of the command \
            line; may be repeated"
    )]
    ignore: Vec<SpareRule>,
    #[arg(
        long,
        value_name = "CODE",
        num_args = 0..=1,
        require_equals = true,
        help = "Keep the exit code of the tests, whatever they leave; with =CODE exit with CODE, such as $? in an EXIT trap"
    )]
    #[expect(clippy::option_option, reason = "no flag, a flag without a value, a flag with one")]
    quiet_exit: Option<Option<u8>>,
    #[arg(
        long,
        value_name = "DIR",
        value_hint = clap::ValueHint::DirPath,
        conflicts_with = "command",
        help = "Run nothing, and end all that earlier tests have left below DIR, as `penfold reap --home DIR` does"
    )]
    home: Option<PathBuf>,
    /// Containment: the way in which penfold knows the members of the sandbox.
    #[arg(long, value_enum, value_name = "LEVEL", default_value = "auto")]
    contain: Containment,
    #[command(flatten)]
    patience: Patience,
    #[command(flatten)]
    event_log: EventLogArgs,
    /// The test command and its arguments.
    #[arg(required_unless_present = "home", trailing_var_arg = true, value_name = "CMD", value_hint = clap::ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

/// The value of `--leaks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OnLeak {
    /// A leak makes the exit code 123.
    Fail,
    /// A leak is only named.
    Warn,
}

fn guard(global: &Global, args: &GuardArgs, tests: Tests) -> Result<u8, Failure> {
    if let Some(home) = &args.home {
        return reap::home(global, home.clone());
    }
    let told = tell(global, args, tests);
    if let Some(code) = args.quiet_exit.flatten() {
        // The caller has its code already. A failure is said, and changes nothing.
        if let Err(failure) =
            told.and_then(|(ended, _)| ended.failure().map_or(Ok(()), |error| Err(error.into())))
        {
            failure.report(global.color.wanted(&std::io::stderr()));
        }
        return Ok(code);
    }
    let (ended, is_leaky) = told?;
    let (passed, exit) = (has_passed(&ended), ended.outcome.report.exit);
    let is_verified = ended.outcome.report.findings.verified;
    let code = run::code_or_die(&ended, Codes { preserve: false, fail_on_leak: false })?;
    Ok(match exit {
        // What the tests leave changes no code.
        Some(exit) if args.quiet_exit.is_some() && !is_verified => exit.process_code(),
        _ if args.quiet_exit.is_some() => code,
        _ if passed && is_verified && args.leaks == OnLeak::Fail && is_leaky => {
            if tests == Tests::All && !global.quiet {
                output::message(&report::ways_on(&ended.outcome.report));
            }
            crate::exit_codes::LEAKED
        }
        _ => code,
    })
}

/// Whether the tests ended by themselves, with 0.
fn has_passed(ended: &EndedSandbox) -> bool {
    let report = &ended.outcome.report;
    report.cause == Cause::Exit && report.exit == Some(ExitStatus::Code(0))
}

/// Runs the tests and tells what they left. Also returns whether they leaked.
fn tell(global: &Global, args: &GuardArgs, tests: Tests) -> Result<(EndedSandbox, bool), Failure> {
    let mut file = report_file(args.report.as_deref().filter(|path| !is_stdout(path)))?;
    let junit = args.junit.as_deref().filter(|path| !is_stdout(path));
    let junit = junit.map(|path| output_file(path, "the leaks")).transpose()?;
    let junit = junit.map(|file| ReportFile::of(file, false));
    let both_stdout =
        [&args.report, &args.junit].into_iter().all(|path| path.as_deref().is_some_and(is_stdout));
    if both_stdout || junit.as_ref().is_some_and(|junit| is_same(&file, &junit.file)) {
        let sentence = "`--report` and `--junit` name the same file";
        return Err(Failure::new(FailureKind::NotStarted, sentence.to_owned()));
    }
    let look = || if tests == Tests::All { HostSnapshot::look() } else { HostSnapshot::default() };
    let before = look();
    let supervisors_file = file.try_clone().or_fail(FailureKind::NotStarted, "cannot keep a report")?;
    let asked = global.config.with_event_log(asked(global, args));
    let ended = run::for_verb(global, asked, |spec| {
        spec.leaks_after = Some(args.grace);
        // The looks at the members see a client, too.
        spec.seeks_clients = false;
        spec.report = Some(ReportFile::of(supervisors_file, false));
        arrange_scratch(spec, tests);
    })?;
    let appeared = look().since(&before);
    let mut report = ended.outcome.report.clone();
    // The outcome has only the first strays, and no details.
    if let Some(whole) = read(&mut file, &report.id) {
        report = whole;
    }
    let leaks = report::leaks(&report);
    let is_told = tests == Tests::All && !global.quiet && report.cause != Cause::StartFailed;
    let is_ignoring = !global.quiet && !report.findings.spared.is_empty();
    let is_late = report.cause == Cause::Timeout;
    if is_told || is_ignoring || !leaks.is_empty() || is_late && !global.quiet {
        output::message(&report::text(&report, &leaks, &appeared));
    } else if is_late {
        output::message(&summary::time_limit(&report));
    }
    output::message(&summary::survivors(&ended.outcome));
    if let Some(error) = &ended.outcome.unwritten {
        output::message(&format!("penfold: cannot write the report: {error}\n"));
    }
    // The code is that of the tests, whatever becomes of the files about them.
    if let (Some(file), Some(path)) = (&junit, &args.junit)
        && let Err(error) = file.write(&junit::document(&report, &leaks))
    {
        output::message(&format!("penfold: cannot write `{}`: {error}\n", path.display()));
    }
    if let Err(error) = print(args, &report, &leaks) {
        output::message(&format!("penfold: {error}\n"));
    }
    if variables::get("GITHUB_ACTIONS".as_ref()).is_some_and(|value| value == "true") {
        github::annotate(&leaks, args.leaks == OnLeak::Fail);
    }
    Ok((ended, !leaks.is_empty()))
}

/// Arranges the scratch directory, which is TMPDIR.
///
/// `PENFOLD_TEST_HOME_BASE` is a directory in it; for a single test the scratch directory itself, which is sooner made. Tests of
/// root may become other users, who need a TMPDIR as well.
fn arrange_scratch(spec: &mut Spec, tests: Tests) {
    let Some(scratch) = &mut spec.scratch else { return };
    scratch.is_shared = rustix::process::geteuid().is_root();
    let mut homes = scratch.path_for(&spec.id.short());
    if tests == Tests::All {
        homes.push(HOMES);
        scratch.directories = vec![HOMES.into()];
    }
    spec.environment.retain(|(key, _)| key != HOME_BASE);
    spec.environment.push((HOME_BASE.into(), homes.into()));
}

/// What these tests are run as. They keep the caller's directory; TMPDIR is the scratch directory.
fn asked(global: &Global, args: &GuardArgs) -> SandboxSpec {
    // A directory that was removed has no path, but can be entered.
    let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("."));
    let ignored = args.ignore.iter().map(|rule| rule.text().to_owned());
    SandboxSpec {
        command: args.command.iter().map(|word| path_text(word.as_ref())).collect(),
        scratch: true,
        dir: Some(path_text(&here)),
        contain: Some(args.contain),
        patience_ms: Some(millis(args.patience.patience)),
        timeout_ms: args.timeout.map(millis),
        event_log: args.event_log.log.clone(),
        spare: global.config.guard.ignore.iter().cloned().chain(ignored).collect(),
        ..SandboxSpec::default()
    }
}

/// Prints the document that is asked for on standard output.
fn print(args: &GuardArgs, report: &Report, leaks: &[DescribedProcess]) -> Result<(), output::WriteError> {
    if args.report.as_deref().is_some_and(is_stdout) {
        output::json(report)?;
    }
    if args.junit.as_deref().is_some_and(is_stdout) {
        output::data(&junit::document(report, leaks))?;
    }
    Ok(())
}

/// Whether a path means standard output.
fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Opens the file to which the supervisor writes the report.
fn report_file(path: Option<&Path>) -> Result<File, Failure> {
    let Some(path) = path else {
        let memory = rustix::fs::memfd_create("penfold-report", MemfdFlags::CLOEXEC);
        return memory.map(File::from).or_fail(FailureKind::NotStarted, "cannot keep a report");
    };
    let file = output_file(path, "the report")?;
    if !file.metadata().is_ok_and(|meta| meta.is_file()) {
        let sentence = format!("cannot write the report to `{}`", path.display());
        return Err(
            Failure::new(FailureKind::NotStarted, sentence).because("it is no regular file".to_owned())
        );
    }
    Ok(file)
}

/// Opens a file before the tests run, so that a path that cannot be written is an error at once.
fn output_file(path: &Path, what: &str) -> Result<File, Failure> {
    let opened = File::options().read(true).write(true).create(true).truncate(false).open(path);
    opened.or_fail(FailureKind::NotStarted, &format!("cannot write {what} to `{}`", path.display()))
}

fn is_same(file: &File, other: &File) -> bool {
    let id = |file: &File| file.metadata().ok().map(|meta| (meta.dev(), meta.ino()));
    id(file).is_some() && id(file) == id(other)
}

/// Reads the report of this sandbox.
fn read(file: &mut File, id: &str) -> Option<Report> {
    let mut text = Vec::new();
    file.rewind().ok()?;
    file.read_to_end(&mut text).ok()?;
    let report: Report = serde_json::from_slice(&text).ok()?;
    (report.id == id).then_some(report)
}
