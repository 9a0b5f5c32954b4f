//! Measures the count of all keys, and a read of their first page, while the number of keys grows.

use std::time::Duration;

use clearlane_proto::etcdserverpb::RangeRequest;

use super::load::{self, in_a_loop, warn_of_failures};
use super::measurements::Measurements;
use super::turn::Turn;
use crate::Result;
use crate::requests::{Call, RANGE, count, range};

pub(super) async fn measure(turn: &Turn<'_>, into: &mut Measurements) -> Result<()> {
    let (server, values) = (turn.server(), &turn.values);
    let window = Duration::from_millis(values.get("window_ms")?);
    let page_keys = values.get::<u32>("page_keys")?;
    let running = turn.start(&[]).await?;
    let endpoint = &running.leader;
    let points = turn.plan.points.iter().flat_map(|points| points.at.at(turn.context.scale));
    for keys in points {
        let space = values.with("count", keys).keys_of("data")?.space;
        load::fill(turn.context, endpoint, &space, turn.seed).await?;
        let page = RangeRequest { limit: page_keys.into(), ..range(&space, 0, space.count) };
        for (name, request, keys_found) in
            [("count", count(&space), 0), ("page", page, page_keys.into())]
        {
            let call = Call::new(RANGE, &request, Some(keys_found));
            let metrics = in_a_loop(endpoint, &call, window).await?;
            warn_of_failures(&metrics, &format!("{server}, {name}"), into);
            into.add_at(server, name, *keys, metrics.latency_ms(0.5));
        }
    }
    running.end().await
}
