//! Range reads over two sources: the pending writes and the engine.

use std::ops::ControlFlow;

use bytes::Bytes;
use clearlane_engine::{Bucket, KeyRange, Read};

use crate::error::Result;
use crate::interface::{RangeVisitor, Value};

/// Scans only the engine. Returns whether the visitor returned `Break`.
pub(crate) fn scan_engine(
    engine: &(impl Read + ?Sized),
    bucket: Bucket,
    range: KeyRange<'_>,
    visit: &mut RangeVisitor<'_>,
) -> Result<ControlFlow<()>> {
    let mut flow = ControlFlow::Continue(());
    engine.scan(bucket, range, &mut |key, value| {
        flow = visit(key, Value::Page(value));
        flow
    })?;
    Ok(flow)
}

/// Scans the engine's records and the pending changes together, in key order. A change hides the
/// engine's record with the same key. A tombstone, which is a change without a value, is not
/// visited.
pub(crate) fn scan_merged<'c>(
    engine: &(impl Read + ?Sized),
    changes: impl Iterator<Item = (&'c [u8], Option<&'c Bytes>)>,
    bucket: Bucket,
    range: KeyRange<'_>,
    visit: &mut RangeVisitor<'_>,
) -> Result<()> {
    let mut changes = changes.peekable();
    let mut flow = ControlFlow::Continue(());
    engine.scan(bucket, range, &mut |key, value| {
        while let Some((changed, change)) = changes.next_if(|(changed, _)| *changed < key) {
            flow = visit_change(changed, change, visit);
            if flow.is_break() {
                return flow;
            }
        }
        flow = match changes.next_if(|(changed, _)| *changed == key) {
            Some((changed, change)) => visit_change(changed, change, visit),
            None => visit(key, Value::Page(value)),
        };
        flow
    })?;
    for (changed, change) in changes {
        if flow.is_break() {
            break;
        }
        flow = visit_change(changed, change, visit);
    }
    Ok(())
}

fn visit_change(
    key: &[u8],
    change: Option<&Bytes>,
    visit: &mut RangeVisitor<'_>,
) -> ControlFlow<()> {
    change.map_or(ControlFlow::Continue(()), |value| visit(key, Value::Shared(value)))
}
