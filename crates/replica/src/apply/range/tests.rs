//! Compares a `Selection`, which drops records early, with a plain one that keeps and sorts all
//! records and then applies the limit.

use proptest::prelude::*;

use super::*;

/// Returns records in key order, with many ties in all other fields.
fn records() -> impl Strategy<Value = Vec<KeyValue>> {
    let one = ((0..4_i64, 0..4_i64, 0..3_i64), 0..4_u8, 0..2_i64);
    prop::collection::vec(one, 0..200).prop_map(|records| {
        let number = records.into_iter().enumerate();
        let record =
            number.map(|(number, ((created, modified, version), value, lease))| KeyValue {
                key: format!("{number:04}").into(),
                create_revision: created,
                mod_revision: modified,
                version,
                value: vec![value; usize::from(value)].into(),
                lease,
            });
        record.collect()
    })
}

fn request() -> impl Strategy<Value = RangeRequest> {
    let limit = prop_oneof![1 => Just(0), 6 => 1..60_i64, 1 => 60..250_i64, 1 => Just(i64::MAX)];
    let filter = prop_oneof![2 => Just((0, 0)), 1 => (0..4_i64, 0..4_i64)];
    (limit, filter, 0..3_i32, 0..5_i32, any::<bool>()).prop_map(
        |(limit, (min_mod_revision, max_create_revision), sort_order, sort_target, keys_only)| {
            RangeRequest {
                limit,
                min_mod_revision,
                max_create_revision,
                sort_order,
                sort_target,
                keys_only,
                ..RangeRequest::default()
            }
        },
    )
}

fn plain(request: &RangeRequest, mut records: Vec<KeyValue>) -> (Vec<KeyValue>, bool) {
    let count = records.len();
    records.retain(|record| matches_filters(request, record.mod_revision, record.create_revision));
    let left = if is_filtered(request) { records.len() } else { count };
    if request.sort_order() == SortOrder::None && !is_filtered(request) && request.limit > 0 {
        let is_sorted = request.sort_target() != SortTarget::Key;
        let limit = request.limit.saturating_add(i64::from(is_sorted));
        records.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    }
    let target = request.sort_target();
    let compare = |a: &KeyValue, b: &KeyValue| match target {
        SortTarget::Key => a.key.cmp(&b.key),
        SortTarget::Version => a.version.cmp(&b.version),
        SortTarget::Create => a.create_revision.cmp(&b.create_revision),
        SortTarget::Mod => a.mod_revision.cmp(&b.mod_revision),
        SortTarget::Value => a.value.cmp(&b.value),
    };
    match request.sort_order() {
        SortOrder::Descend => records.sort_by(|a, b| compare(b, a)),
        SortOrder::Ascend | SortOrder::None => records.sort_by(compare),
    }
    let mut more = false;
    if request.limit > 0 {
        let limit = usize::try_from(request.limit).unwrap_or(usize::MAX);
        records.truncate(limit);
        more = left > limit;
    }
    if request.keys_only {
        for record in &mut records {
            record.value.clear();
            record.lease = if target == SortTarget::Value { record.lease } else { 0 };
        }
    }
    (records, more)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn what_is_dropped_on_the_way_is_not_in_the_answer(
        records in records(),
        request in request(),
    ) {
        let mut selection = Selection::new(&request);
        // The store gets this limit and would visit only these records.
        let store_limit = usize::try_from(store_limit(&request)).ok().filter(|limit| *limit > 0);
        for record in records.iter().take(store_limit.unwrap_or(usize::MAX)) {
            selection.add(record.clone());
            if let Some(limit) = selection.limit {
                prop_assert!(selection.records.len() < limit.saturating_mul(2).max(2));
            }
        }
        let found = selection.finish(records.len() as u64);
        prop_assert_eq!(found, plain(&request, records));
    }
}

#[test]
fn values_of_keys_only_are_not_kept_while_records_are_collected() {
    let record = KeyValue { key: "k".into(), value: "value".into(), ..KeyValue::default() };
    for (sort_target, kept) in [(0, 0), (1, 0), (2, 0), (3, 0), (4, 5)] {
        let request = RangeRequest { keys_only: true, sort_target, ..RangeRequest::default() };
        let mut selection = Selection::new(&request);
        selection.add(record.clone());
        assert_eq!(selection.records[0].value.len(), kept);
        assert!(selection.finish(1).0[0].value.is_empty());
    }
}
