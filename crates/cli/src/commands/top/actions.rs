//! Ends sandboxes for `penfold top`, as `penfold stop` and `penfold kill` do.

use penfold_control::{EndLimits, EndMethod, ResolveError, StopResult};
use penfold_state::error_chain;
use penfold_top::{Actions, Ending};

use crate::args::verb::Global;
use crate::sandboxes::find;
use crate::text::template;

/// The sandboxes of this host.
#[derive(Debug)]
pub(super) struct HostActions {
    global: Global,
}

impl HostActions {
    pub(super) fn new(global: &Global) -> HostActions {
        HostActions { global: global.clone() }
    }
}

impl Actions for HostActions {
    fn end(&self, id: &str, ending: Ending) -> Result<StopResult, String> {
        let resolver = find::resolver(&self.global);
        let known = match resolver.resolve(id) {
            // A name may look like an id.
            Ok(known) if known.id == id => known,
            Ok(_) | Err(ResolveError::NotFound { .. }) => return Err("its record is gone".to_owned()),
            Err(error) => return Err(template::printable(&error_chain(&error))),
        };
        let how = match ending {
            Ending::Stop => EndMethod::Stop { signal: None, grace: None },
            Ending::Kill => EndMethod::Kill,
        };
        let results =
            penfold_control::end_sandboxes(&resolver, &[known], how, &EndLimits::default(), &mut |_| {});
        results.into_iter().next().ok_or_else(|| "it could not be ended".to_owned())
    }
}
