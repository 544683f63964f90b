//! `penfold ports`.

use clap::Args;
use penfold_control::ports::{PortHolder, list_holders};
use serde::Serialize;

use crate::args::usage;
use crate::args::verb::{Global, Places, Verb};
use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::sandboxes::find::{self, Among};
use crate::text::remark::remark;
use crate::text::table::{self, Narrow};
use crate::text::{template, users};
use crate::{exit_codes, output, value};

/// The verb `ports`.
pub(crate) const VERB: Verb = Verb {
    name: "ports",
    aliases: &[],
    about: "Show who listens on which TCP port",
    description: "Shows the TCP ports on which processes listen: those of sandboxes first, in any network namespace, then those \
        outside, in the namespace of this command. A process of another user is shown without its pid and its command, unless this \
        user may see them.",
    examples: &[
        ("penfold ports", "show all ports with a listener"),
        ("penfold ports 3000", "show who holds port 3000"),
        ("penfold ports 3000 --json", "show it for scripts; an empty list if nothing listens there"),
    ],
    usage_failure: FailureKind::Usage,
    define: PortsArgs::augment_args,
    places: Places::Hosts,
    call: |global, matches| ports(global, &usage::read(&VERB, matches)?),
};

/// The arguments of `penfold ports`.
#[derive(Args, Clone, Debug)]
pub(crate) struct PortsArgs {
    /// Only this port.
    #[arg(value_name = "PORT", value_parser = value::port)]
    pub(crate) port: Option<u16>,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A listener in JSON.
#[derive(Serialize)]
struct Row<'a> {
    schema: u32,
    #[serde(flatten)]
    holder: &'a PortHolder,
    /// The name of the user, if it has one here.
    user_name: Option<&'a str>,
}

/// What makes room for commands in a narrow terminal.
const NARROW: Narrow<'_> = Narrow { left_out: &["USER"], cut: "SANDBOX" };

/// Shows who listens.
fn ports(global: &Global, args: &PortsArgs) -> Result<u8, Failure> {
    let resolver = find::resolver(global);
    let living = find::list(&resolver, Among::Living)?;
    let cannot = "cannot find who listens";
    let mut holders = list_holders(&resolver, &living).or_fail(FailureKind::Other, cannot)?;
    holders.retain(|holder| args.port.is_none_or(|port| holder.port.port == port));
    let names = users::names();
    if args.json {
        let rows: Vec<Row<'_>> = holders
            .iter()
            .map(|holder| {
                let user_name = names.get(&holder.user).map(String::as_str);
                Row { schema: penfold_state::record::SCHEMA, holder, user_name }
            })
            .collect();
        output::json(&rows)?;
        return Ok(exit_codes::SUCCESS);
    }
    match args.port {
        Some(port) if holders.is_empty() => remark(&format!("nothing listens on port {port}")),
        _ => {
            let mut rows =
                vec![["PORT", "ADDRESS", "SANDBOX", "PID", "USER", "COMMAND"].map(str::to_owned).to_vec()];
            rows.extend(holders.iter().map(|holder| {
                let user = names.get(&holder.user).map(|name| template::printable(name));
                cells(holder, user.unwrap_or_else(|| holder.user.to_string()))
            }));
            if let Some(width) = output::data_width() {
                table::fit(&mut rows, width, NARROW);
            }
            output::data(table::aligned(&rows).as_bytes())?;
        }
    }
    Ok(exit_codes::SUCCESS)
}

fn cells(holder: &PortHolder, user: String) -> Vec<String> {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let address = holder.port.address.to_string();
    let own = if holder.is_own_network { " (own network)" } else { "" };
    let sandbox = holder.name.as_ref().or(holder.sandbox.as_ref());
    vec![
        holder.port.port.to_string(),
        format!("{address}{own}"),
        or_dash(sandbox.map(|name| template::printable(name))),
        or_dash(holder.pid.map(|pid| pid.to_string())),
        user,
        or_dash(holder.command.clone()),
    ]
}
