//! Range reads over two sources: what is pending, and what the engine has.

use std::ops::ControlFlow;

use bytes::Bytes;
use clearlane_engine::{Bucket, KeyRange, Read};

use crate::error::Result;
use crate::interface::{RangeVisitor, Value};

/// Returns whether the visitor broke.
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

/// Walks the engine's records and the pending changes side by side, in key order. A change hides
/// the record of the same key, and a tombstone (a change without a value) shows nothing.
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
