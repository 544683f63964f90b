//! The requests of the protocol.

use std::sync::Arc;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ErrorData, Implementation, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig,
};
use rmcp::service::RequestContext;
use rmcp::{RoleServer, ServerHandler};
use tokio::sync::{Semaphore, watch};

use crate::answer::{ToolAnswer, ToolError};
use crate::call;
use crate::host::ServerState;
use crate::tool::Tool;
use crate::tools;

/// The most calls at one time; each has a thread.
const CALLS: usize = 256;

const INSTRUCTIONS: &str = "Starts dev servers and other long-running commands as sandboxes, and ends them with every process \
    that they started. Start with `run`, which waits until the server is ready; read output with `logs`; end with `stop`, which \
    answers after the ports are free. Everything that was started here ends with this session.";

/// Answers the requests of one client.
pub(crate) struct Server {
    host: Arc<ServerState>,
    /// Whether standard input has ended.
    closing: watch::Receiver<bool>,
    calls: Semaphore,
}

impl Server {
    pub(crate) fn new(host: Arc<ServerState>, closing: watch::Receiver<bool>) -> Server {
        Server { host, closing, calls: Semaphore::new(CALLS) }
    }

    /// Whether the tool is offered.
    fn offers(&self, tool: Tool) -> bool {
        !self.host.config.read_only || tool.is_read_only()
    }

    async fn call(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ToolAnswer, ErrorData> {
        let Some(tool) = Tool::named(&request.name) else {
            let known = Tool::ALL.into_iter().filter(|&tool| self.offers(tool)).map(Tool::name);
            let known = known.collect::<Vec<_>>().join(", ");
            return Err(ErrorData::invalid_params(
                format!("there is no tool `{}`; there are {known}", request.name),
                None,
            ));
        };
        let Ok(_place) = self.calls.try_acquire() else {
            return Ok(ToolError::new(format!("{CALLS} calls are under way; wait for one to end")).into());
        };
        let (caller, cancel) = call::cancel_pair()
            .map_err(|error| ErrorData::internal_error(format!("cannot make a pipe: {error}"), None))?;
        let host = Arc::clone(&self.host);
        let given = request.arguments.unwrap_or_default();
        let mut work = tokio::task::spawn_blocking(move || tools::call_tool(&host, tool, given, &cancel));
        let mut closing = self.closing.clone();
        let abandoned = |_| ErrorData::internal_error("the call was abandoned", None);
        tokio::select! {
            done = &mut work => return done.map_err(abandoned),
            () = context.ct.cancelled() => {}
            _ = closing.wait_for(|&closing| closing) => {}
        }
        drop(caller);
        work.await.map_err(abandoned)
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().build();
        let name = Implementation::new("penfold", env!("CARGO_PKG_VERSION"));
        ServerConfig::new(capabilities).with_server_info(name).with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let offered = Tool::ALL.into_iter().filter(|&tool| self.offers(tool)).map(Tool::listed);
        Ok(ListToolsResult::with_all_items(offered.collect()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let answer = self.call(request, context).await?;
        Ok(CallToolResult::from(answer).into())
    }
}
