//! A sandbox as `--json` prints it.

use penfold_control::View;
use serde::Serialize;

/// A sandbox as `--json` prints it.
#[derive(Serialize)]
pub(crate) struct Row<'a> {
    pub(crate) schema: u32,
    #[serde(flatten)]
    pub(crate) view: &'a View,
}

impl Row<'_> {
    pub(crate) fn of(view: &View) -> Row<'_> {
        Row { schema: penfold_state::record::SCHEMA, view }
    }
}
