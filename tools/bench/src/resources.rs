//! Start and end of a command with a network namespace, beside the commands of iproute2.

use std::process::Command;

use crate::contender::{Contender, named, race};
use crate::document::Section;
use crate::error::Error;
use crate::table::{Table, ratio, unmeasured, verdict};
use crate::tools::Tools;
use crate::{Args, talk};

const PLAIN: &str = "penfold run";
const NETNS: &str = "penfold run --netns";
const LINK: &str = "penfold run --address --tap";
const IP: &str = "ip netns add; ip netns exec; ip netns del";
const UNSHARE: &str = "unshare --net";

pub(crate) fn measure(args: &Args, tools: &Tools) -> Result<Section, Error> {
    let rounds = args.rounds(50);
    talk(&format!("resources: {rounds} rounds"));
    let mut body = format!(
        "Milliseconds from spawn to exit of `/bin/true`, {rounds} rounds, p50 (p90). `ip netns del` removes the name of the namespace; \
         penfold waits until the kernel has destroyed it.\n\n"
    );
    if !rustix::process::geteuid().is_root() {
        unmeasured(&mut body, NETNS, "only root may make network namespaces");
        return Ok(section(body));
    }
    let ours = |name: &str, words: &[&str]| {
        let mut command = tools.run(&[]);
        command.args(words).arg("/bin/true");
        Contender::new(name, command)
    };
    let shell = |name: &str, script: String| {
        let mut command = Command::new("sh");
        command.args(["-c", &script]);
        Contender::new(name, command)
    };
    let ip = format!(
        "ip netns add penfold-bench-{0} && ip netns exec penfold-bench-{0} /bin/true; ip netns del penfold-bench-{0}",
        std::process::id()
    );
    let contenders = vec![
        ours(PLAIN, &[]),
        ours(NETNS, &["--netns"]),
        ours(LINK, &["--address", "10.255.254.2/30", "--gateway", "10.255.254.1", "--tap"]),
        shell(IP, ip),
        shell(UNSHARE, "exec unshare --net /bin/true".to_owned()),
    ];
    let outcomes = race(contenders, rounds)?;
    let peer = named(&outcomes, IP).map(|outcome| &outcome.samples);
    let mut table = Table::new(["what", "p50 (p90) ms", "× ip netns"]);
    let mut missing = String::new();
    for outcome in &outcomes {
        match &outcome.skipped {
            Some(reason) => unmeasured(&mut missing, &outcome.name, reason),
            None => table.row([
                format!("`{}`", outcome.name),
                outcome.samples.cell(),
                ratio(peer.and_then(|peer| outcome.samples.times(peer))),
            ]),
        }
    }
    for part in [table.markdown(), missing, "\n".to_owned()] {
        body.push_str(&part);
    }
    let times = named(&outcomes, NETNS)
        .and_then(|own| named(&outcomes, IP).and_then(|peer| own.samples.times(&peer.samples)));
    body.push_str(&verdict(NETNS, " × ip netns", 2.0, times));
    Ok(section(body))
}

fn section(body: String) -> Section {
    Section { name: "resources", title: "Network namespaces", body, ..Section::default() }
}
