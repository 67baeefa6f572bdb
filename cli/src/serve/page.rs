//! The pages that a server's sockets have: `/metrics` for Prometheus, and `/status`.

use std::sync::Arc;
use std::time::Instant;

use rcuwalk_fuse::Observer;

use crate::mount::{http, metrics};

/// What they tell of the server that `observer` observes; `/status` also says `what` it is, by
/// these words.
pub(super) fn pages(observer: Observer, what: serde_json::Value) -> Arc<http::Pages> {
    let since = Instant::now();
    Arc::new(move |path, _| match path {
        "/metrics" => Some((metrics::KIND, metrics::text(&observer.statistics()?))),
        "/status" => {
            let now = observer.statistics()?;
            let mut status = serde_json::json!({
                "pid": std::process::id(),
                "seconds": since.elapsed().as_secs(),
                "nodes": now.nodes,
                "open": now.open,
                "in_flight": now.in_flight,
                "stuck": now.stuck.stuck,
                "oldest_seconds": now.stuck.oldest.as_secs(),
            });
            if let (Some(status), Some(what)) = (status.as_object_mut(), what.as_object()) {
                status.extend(what.clone());
            }
            Some(("application/json", status.to_string()))
        }
        _ => None,
    })
}
