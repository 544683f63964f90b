//! What the tools do: a file each.

mod exec;
mod logs;
mod ports;
mod ps;
mod report;
mod run;
mod stop;

use rmcp::model::JsonObject;

use crate::answer::{ToolAnswer, ToolError};
use crate::arguments::read_arguments;
use crate::call::Cancel;
use crate::host::ServerState;
use crate::tool::Tool;

pub(crate) use stop::stop_all;

/// Calls a tool. Blocks until the answer is there, or the call is cancelled.
pub(crate) fn call_tool(host: &ServerState, tool: Tool, given: JsonObject, cancel: &Cancel) -> ToolAnswer {
    answer(host, tool, given, cancel).unwrap_or_else(ToolAnswer::from)
}

fn answer(
    host: &ServerState,
    tool: Tool,
    given: JsonObject,
    cancel: &Cancel,
) -> Result<ToolAnswer, ToolError> {
    if host.config.read_only && !tool.is_read_only() {
        return Err(ToolError::new(format!(
            "this server is read-only, so `{}` cannot be called; `ps`, `logs`, `report` and `ports` can",
            tool.name()
        )));
    }
    let name = tool.name();
    match tool {
        Tool::Run => run::run(host, read_arguments(name, given)?, cancel),
        Tool::Ps => ps::ps(host, &read_arguments(name, given)?),
        Tool::Logs => logs::logs(host, read_arguments(name, given)?, cancel),
        Tool::Exec => exec::exec(host, read_arguments(name, given)?, cancel),
        Tool::Stop => stop::stop(host, &read_arguments(name, given)?),
        Tool::Report => report::report(host, &read_arguments(name, given)?),
        Tool::Ports => ports::ports(host, &read_arguments(name, given)?),
    }
}
