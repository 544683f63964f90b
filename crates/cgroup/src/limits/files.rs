//! The control files that hold limits: `memory.max`, `pids.max`, `cpu.max`.

use std::ffi::CStr;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;

use super::Limits;
use super::error::LimitError;
use super::subtree::read_control_file;
use crate::dir;
use crate::leaf::Leaf;

/// The period of `cpu.max`, the kernel's default.
const PERIOD: Duration = Duration::from_millis(100);

impl Leaf {
    /// Limits the members, and reads back what the kernel holds.
    ///
    /// The cgroup above must have the controllers enabled: [`LimitedPlace::enable`](super::LimitedPlace::enable). Members beyond
    /// the memory limit are killed all together (`memory.oom.group`, Linux 4.19) and do not use swap instead.
    ///
    /// # Errors
    /// Some limits may hold then: remove the leaf.
    pub fn limit(&self, limits: &Limits) -> Result<(), LimitError> {
        if let Some(bytes) = limits.memory_bytes {
            self.hold_if_present(c"memory.oom.group", "1")?;
            self.hold_if_present(c"memory.swap.max", "0")?;
            // The kernel keeps whole pages.
            let page = u64::try_from(rustix::param::page_size()).unwrap_or(1);
            self.hold(c"memory.max", &(bytes - bytes % page).to_string())?;
        }
        if let Some(pids) = limits.pids {
            self.hold(c"pids.max", &pids.to_string())?;
        }
        if let Some(cpus) = limits.cpus {
            let quota = cpus.as_micros() * PERIOD.as_micros() / Duration::from_secs(1).as_micros();
            self.hold(c"cpu.max", &format!("{quota} {}", PERIOD.as_micros()))?;
        }
        Ok(())
    }

    /// Writes to a file that kernels without the feature lack.
    fn hold_if_present(&self, name: &CStr, text: &str) -> Result<(), LimitError> {
        match self.hold(name, text) {
            Err(LimitError::Write { source, .. })
                if source.raw_os_error() == Some(Errno::NOENT.raw_os_error()) =>
            {
                Ok(())
            }
            held => held,
        }
    }

    fn hold(&self, name: &CStr, text: &str) -> Result<(), LimitError> {
        let path = || self.path().join(name.to_string_lossy().as_ref());
        dir::write_control_file(self.dir(), name, text.as_bytes()).map_err(|errno| LimitError::Write {
            text: text.to_owned(),
            path: path(),
            source: errno.into(),
        })?;
        let mut held = [0; 128];
        let held = dir::read_short(self.dir(), name, &mut held)
            .map_err(|errno| LimitError::Read { path: path(), source: errno.into() })?;
        let held = held.trim_ascii_end();
        if held == text.as_bytes() {
            return Ok(());
        }
        let found = String::from_utf8_lossy(held).into_owned();
        Err(LimitError::Differs { text: text.to_owned(), path: path(), found })
    }
}

/// Reads the limits of one cgroup. A cgroup without a controller has no limit of that kind.
pub(super) fn read_limits(dir: &Path) -> Result<Limits, LimitError> {
    let value = |name: &str| match read_control_file(&dir.join(name)) {
        Ok(text) => Ok(Some(text)),
        Err(LimitError::Read { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    };
    let number = |name: &str| value(name).map(|text| text.and_then(|text| text.trim_ascii().parse().ok()));
    Ok(Limits {
        memory_bytes: number("memory.max")?,
        pids: number("pids.max")?,
        cpus: value("cpu.max")?.as_deref().and_then(per_second),
    })
}

/// Converts the text of `cpu.max`, quota and period in microseconds, to the processor time for each second.
fn per_second(text: &str) -> Option<Duration> {
    let (quota, period) = text.trim_ascii().split_once(' ')?;
    let (quota, period): (u64, u64) = (quota.parse().ok()?, period.parse().ok()?);
    Some(Duration::from_micros(quota.checked_mul(1_000_000)?.checked_div(period)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::LeafPlace;

    const LIMITS: Limits = Limits {
        memory_bytes: Some((64 << 20) + 5),
        pids: Some(50),
        cpus: Some(Duration::from_millis(1500)),
    };

    /// A leaf on an ordinary file system, with these files.
    fn leaf(root: &Path, files: &[(&str, &str)]) -> Leaf {
        let leaf = Leaf::create(&LeafPlace::fake(root), "leaf").unwrap();
        for (name, text) in files {
            std::fs::write(leaf.path().join(name), text).unwrap();
        }
        leaf
    }

    /// spec: 17.1
    #[test]
    fn limits_are_written_to_their_files() {
        let root = tempfile::tempdir().unwrap();
        let all = ["memory.max", "memory.swap.max", "memory.oom.group", "pids.max", "cpu.max"];
        let leaf = leaf(root.path(), &all.map(|name| (name, "")));
        leaf.limit(&LIMITS).unwrap();
        let texts = all.map(|name| std::fs::read_to_string(leaf.path().join(name)).unwrap());
        assert_eq!(texts, ["67108864", "0", "1", "50", "150000 100000"]);
    }

    /// spec: 17.4
    #[test]
    fn a_limit_without_its_file_is_an_error_and_an_older_kernel_lacks_some_files() {
        let root = tempfile::tempdir().unwrap();
        let leaf = leaf(root.path(), &[("memory.max", ""), ("cpu.max", "")]);
        leaf.limit(&Limits { pids: None, ..LIMITS }).unwrap();
        let error = leaf.limit(&LIMITS).unwrap_err();
        let LimitError::Write { text, path, source } = &error else { panic!("{error:?}") };
        assert_eq!((text.as_str(), source.kind()), ("50", std::io::ErrorKind::NotFound));
        assert!(path.ends_with("leaf/pids.max"));
    }

    /// spec: 17.4
    #[test]
    fn a_limit_that_the_kernel_holds_differently_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        // An ordinary file keeps the rest of its text.
        let leaf = leaf(root.path(), &[("pids.max", "500000\n")]);
        let error = leaf.limit(&Limits { pids: Some(50), ..Limits::default() }).unwrap_err();
        assert!(
            error.to_string().ends_with("pids.max` has the value `500000` after `50` was written"),
            "{error}"
        );
    }

    #[test]
    fn cpu_max_is_a_share_of_its_period() {
        assert_eq!(per_second("50000 100000\n"), Some(Duration::from_millis(500)));
        assert_eq!(per_second("150000 50000\n"), Some(Duration::from_secs(3)));
        assert_eq!(per_second("max 100000\n"), None);
        assert_eq!(per_second("1 0\n"), None);
        assert_eq!(per_second(""), None);
    }

    #[test]
    fn a_cgroup_without_a_controller_has_no_limit() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(read_limits(root.path()).unwrap(), Limits::default());
        std::fs::write(root.path().join("memory.max"), "max\n").unwrap();
        std::fs::write(root.path().join("pids.max"), "17\n").unwrap();
        assert_eq!(read_limits(root.path()).unwrap(), Limits { pids: Some(17), ..Limits::default() });
    }
}
