//! Reads the templates of `--templates DIR`.

use std::collections::BTreeMap;
use std::path::Path;

use penfold_request::SandboxSpec;

use crate::commands::run::spec_file;
use crate::failure::{Failure, FailureKind, OrFail as _};

/// Reads each file `NAME.toml` of a directory; the name is that of the template.
///
/// # Errors
/// When a file cannot be read, or is no template.
pub(super) fn read(dir: &Path) -> Result<BTreeMap<String, SandboxSpec>, Failure> {
    let cannot = format!("cannot read the templates in `{}`", dir.display());
    let mut templates = BTreeMap::new();
    for entry in std::fs::read_dir(dir).or_fail(FailureKind::Usage, &cannot)? {
        let path = entry.or_fail(FailureKind::Usage, &cannot)?.path();
        let Some(name) = path.file_stem().and_then(|name| name.to_str()).filter(|_| is_toml(&path)) else {
            continue;
        };
        let spec = spec_file::read(&path).map_err(|failure| failure.with_kind(FailureKind::Usage))?;
        penfold_api_e2b::check_template(&spec)
            .map_err(|why| Failure::new(FailureKind::Usage, format!("`{}`: {why}", path.display())))?;
        templates.insert(name.to_owned(), spec);
    }
    if templates.is_empty() {
        return Err(Failure::new(FailureKind::Usage, format!("{cannot}: there is no file NAME.toml")));
    }
    Ok(templates)
}

fn is_toml(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "toml")
}
