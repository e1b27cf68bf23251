//! Attaching a node by the running daemon.

use std::path::{Path, PathBuf};

use control::secret_url::SecretUrl;
use control::{Answer, AttachRequest, Request, client};
use process::exit::Failure;
use process::paths::DefaultPaths;
use recovery::list::AttachState;
use recovery::record::{self, to_millis};

use crate::node::Node;

/// What became of a node.
#[derive(Debug)]
pub enum NodeConnection {
    /// The daemon has attached it.
    Attached {
        /// What users open: device, file, socket.
        ways: Vec<String>,
        /// The same as people read it.
        shown: String,
    },
    /// It was attached before; what users open.
    AlreadyAttached(Vec<String>),
}

/// Has the daemon attach a node's volume, or go on with what a killed holder has left. `control`: another socket than
/// the default.
///
/// # Errors
/// The daemon cannot be asked, or refuses.
pub fn connect(control: Option<&Path>, node: &Node) -> Result<NodeConnection, Failure> {
    let socket = control.map_or_else(|| DefaultPaths::of_process().control, Path::to_owned);
    let shown = node.shown_url();
    let found = recovery::find_all(&record::record_dirs(control))?;
    let of_node = found.iter().filter(|found| found.record.url == shown);
    let mut of_node = of_node.filter(|found| node.at.as_deref().is_none_or(|at| found.matches_name(at)));
    // One whose holder was killed goes on; its users wait.
    let (recover, at) = match of_node.next() {
        Some(found) if found.state == AttachState::Serving => {
            return Ok(NodeConnection::AlreadyAttached(found.record.ways.clone()));
        }
        Some(found) => (true, found.record.ways.first().map(PathBuf::from)),
        None => (false, node.at.clone()),
    };
    let request = AttachRequest {
        url: SecretUrl::from(node.url.as_str()),
        via: node.via.clone(),
        at,
        recover,
        force: false,
        timeout_ms: to_millis(node.recovery_timeout()),
    };
    match client::send_request(&socket, Request::Attach(request))? {
        Answer::Attached(attached) => {
            Ok(NodeConnection::Attached { ways: attached.ways, shown: attached.lines.join(" ") })
        }
        _ => Err(Failure::failed("unexpected answer from the daemon; is it a different version?")),
    }
}
