//! Formats requests for log messages, in etcd's short form. A put is shown with the length of its
//! value, and a compare with its target and keys only. No password is shown:
//!
//! ```text
//! header:<ID:7> put:<key:"foo" value_size:6 >
//! header:<ID:8> txn:<compare:<target:MOD key:"x"> success:<> failure:<delete_range:<key:"x">>>
//! header:<ID:9> auth_user_add:<name:"u">
//! ```

use std::fmt;

use clearlane_proto::etcdserverpb::request_op::Request as Op;
use clearlane_proto::etcdserverpb::{
    Compare, DeleteRangeRequest, InternalRaftRequest, PutRequest, RangeRequest, RequestOp,
    TxnRequest,
};

pub fn request(request: &InternalRaftRequest) -> impl fmt::Display + '_ {
    fmt::from_fn(move |f| {
        let id = request.header.as_ref().map_or(request.id, |header| header.id);
        write!(f, "header:<ID:{id}>")?;
        if let Some(user) = request.header.as_ref().map(|header| &header.username)
            && !user.is_empty()
        {
            write!(f, " username:{user:?}")?;
        }
        f.write_str(" ")?;
        write_request(request, f)
    })
}

pub fn range(request: &RangeRequest) -> impl fmt::Display + '_ {
    fmt::from_fn(move |f| {
        write_keys(&request.key, &request.range_end, f)?;
        for (name, value) in [("limit", request.limit), ("revision", request.revision)] {
            if value != 0 {
                write!(f, " {name}:{value}")?;
            }
        }
        Ok(())
    })
}

pub fn txn(request: &TxnRequest) -> impl fmt::Display + '_ {
    fmt::from_fn(move |f| {
        for compare in &request.compare {
            write!(f, "compare:<{}> ", fmt::from_fn(|f| write_compare(compare, f)))?;
        }
        f.write_str("success:<")?;
        write_ops(&request.success, f)?;
        f.write_str("> failure:<")?;
        write_ops(&request.failure, f)?;
        f.write_str(">")
    })
}

fn write_request(request: &InternalRaftRequest, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if let Some(put) = &request.put {
        return write_put(put, f);
    }
    if let Some(delete) = &request.delete_range {
        return write_delete(delete, f);
    }
    if let Some(transaction) = &request.txn {
        return write!(f, "txn:<{}>", txn(transaction));
    }
    if let Some(compaction) = &request.compaction {
        return write!(f, "compaction:<revision:{}>", compaction.revision);
    }
    if let Some(grant) = &request.lease_grant {
        return write!(f, "lease_grant:<ttl:{}-second id:{:016x}>", grant.ttl, grant.id);
    }
    if let Some(revoke) = &request.lease_revoke {
        return write!(f, "lease_revoke:<id:{:016x}>", revoke.id);
    }
    if let Some(checkpoint) = &request.lease_checkpoint {
        return write!(f, "lease_checkpoint:<checkpoints:{}>", checkpoint.checkpoints.len());
    }
    if let Some(alarm) = &request.alarm {
        let (action, kind) = (alarm.action().as_str_name(), alarm.alarm().as_str_name());
        return write!(f, "alarm:<action:{action} memberID:{} alarm:{kind}>", alarm.member_id);
    }
    match (auth_target(request), kind_name(request)) {
        (Some((kind, name)), _) => write!(f, "{kind}:<name:{name:?}>"),
        (None, kind) => write!(f, "{kind}:<>"),
    }
}

fn write_put(put: &PutRequest, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "put:<key:\"{}\" value_size:{} ", put.key.escape_ascii(), put.value.len())?;
    if put.lease != 0 {
        write!(f, "lease:{} ", put.lease)?;
    }
    f.write_str(">")
}

fn write_delete(delete: &DeleteRangeRequest, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str("delete_range:<")?;
    write_keys(&delete.key, &delete.range_end, f)?;
    f.write_str(">")
}

pub fn write_keys(key: &[u8], end: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "key:\"{}\"", key.escape_ascii())?;
    if end.is_empty() { Ok(()) } else { write!(f, " range_end:\"{}\"", end.escape_ascii()) }
}

fn write_compare(compare: &Compare, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "target:{} ", compare.target().as_str_name())?;
    write_keys(&compare.key, &compare.range_end, f)
}

fn write_ops(list: &[RequestOp], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (number, operation) in list.iter().enumerate() {
        f.write_str(if number == 0 { "" } else { " " })?;
        match &operation.request {
            Some(Op::RequestPut(put)) => write_put(put, f)?,
            Some(Op::RequestDeleteRange(delete)) => write_delete(delete, f)?,
            Some(Op::RequestRange(asked)) => write!(f, "range:<{}>", range(asked))?,
            Some(Op::RequestTxn(inner)) => write!(f, "txn:<{}>", txn(inner))?,
            None => {}
        }
    }
    Ok(())
}

/// Returns the field name of a request about users or roles, and the user or role that the request
/// names. Returns `None` for a request that names none.
fn auth_target(request: &InternalRaftRequest) -> Option<(&'static str, &str)> {
    let names = [
        ("authenticate", request.authenticate.as_ref().map(|of| &of.name)),
        ("auth_user_add", request.auth_user_add.as_ref().map(|of| &of.name)),
        ("auth_user_delete", request.auth_user_delete.as_ref().map(|of| &of.name)),
        (
            "auth_user_change_password",
            request.auth_user_change_password.as_ref().map(|of| &of.name),
        ),
        ("auth_user_grant_role", request.auth_user_grant_role.as_ref().map(|of| &of.user)),
        ("auth_user_revoke_role", request.auth_user_revoke_role.as_ref().map(|of| &of.name)),
        ("auth_role_add", request.auth_role_add.as_ref().map(|of| &of.name)),
        ("auth_role_delete", request.auth_role_delete.as_ref().map(|of| &of.role)),
        (
            "auth_role_grant_permission",
            request.auth_role_grant_permission.as_ref().map(|of| &of.name),
        ),
        (
            "auth_role_revoke_permission",
            request.auth_role_revoke_permission.as_ref().map(|of| &of.role),
        ),
    ];
    names.into_iter().find_map(|(kind, name)| Some((kind, name?.as_str())))
}

/// Returns the field name of a request that is shown without details, or `nothing` if the request
/// has no known field.
fn kind_name(request: &InternalRaftRequest) -> &'static str {
    let kinds = [
        ("range", request.range.is_some()),
        ("auth_enable", request.auth_enable.is_some()),
        ("auth_disable", request.auth_disable.is_some()),
        ("cluster_version_set", request.cluster_version_set.is_some()),
        ("cluster_member_attr_set", request.cluster_member_attr_set.is_some()),
        ("downgrade_info_set", request.downgrade_info_set.is_some()),
    ];
    kinds.into_iter().find(|(_, is)| *is).map_or("nothing", |(kind, _)| kind)
}

#[cfg(test)]
mod tests {
    use clearlane_proto::etcdserverpb::{AuthUserAddRequest, RequestHeader};

    use super::*;

    fn put(key: &'static str) -> PutRequest {
        PutRequest { key: key.into(), value: "secret".into(), ..PutRequest::default() }
    }

    fn described(internal: InternalRaftRequest) -> String {
        let header = Some(RequestHeader { id: 7, ..RequestHeader::default() });
        request(&InternalRaftRequest { header, ..internal }).to_string()
    }

    #[test]
    fn what_may_be_secret_is_left_out() {
        let internal = InternalRaftRequest { put: Some(put("a\n")), ..Default::default() };
        assert_eq!(described(internal), r#"header:<ID:7> put:<key:"a\n" value_size:6 >"#);
        let (name, password) = ("u".to_owned(), "secret".to_owned());
        let auth_user_add = Some(AuthUserAddRequest { name, password, ..Default::default() });
        let internal = InternalRaftRequest { auth_user_add, ..Default::default() };
        assert_eq!(described(internal), r#"header:<ID:7> auth_user_add:<name:"u">"#);
        assert_eq!(described(InternalRaftRequest::default()), "header:<ID:7> nothing:<>");
    }

    #[test]
    fn a_transaction_tells_its_operations() {
        let compare = vec![Compare { key: "c".into(), ..Compare::default() }];
        let asked = RangeRequest { key: "r".into(), limit: 3, ..RangeRequest::default() };
        let op = |request| RequestOp { request: Some(request) };
        let success = vec![op(Op::RequestPut(put("p"))), op(Op::RequestRange(asked))];
        let inner = TxnRequest::default();
        let failure = vec![op(Op::RequestTxn(inner))];
        let internal = TxnRequest { compare, success, failure };
        assert_eq!(
            txn(&internal).to_string(),
            "compare:<target:VERSION key:\"c\"> success:<put:<key:\"p\" value_size:6 > \
             range:<key:\"r\" limit:3>> failure:<txn:<success:<> failure:<>>>"
        );
    }
}
