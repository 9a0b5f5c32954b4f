//! Whether a picture or a page is well-formed XML, for tests.

type Result<T> = std::result::Result<T, String>;

const ENTITIES: [&str; 4] = ["amp;", "lt;", "gt;", "quot;"];

/// The first thing that is wrong.
pub(crate) fn check(text: &str) -> Result<()> {
    let text = text.strip_prefix("<!doctype html>\n").unwrap_or(text);
    let mut open: Vec<&str> = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('<') {
        check_text(before)?;
        if open.is_empty() && !before.trim().is_empty() {
            return Err(format!("text outside of the root: {before}"));
        }
        let (tag, after) = after.split_once('>').ok_or("a tag that does not end")?;
        if let Some(name) = tag.strip_prefix('/') {
            let opened = open.pop();
            if opened != Some(name) {
                return Err(format!("</{name}> ends {opened:?}"));
            }
        } else {
            let (inside, is_empty) =
                tag.strip_suffix('/').map_or((tag, false), |inside| (inside, true));
            let name = check_tag(inside)?;
            if !is_empty {
                open.push(name);
            }
        }
        rest = after;
    }
    check_text(rest)?;
    match open.last() {
        Some(name) => Err(format!("<{name}> is not ended")),
        None if rest.trim().is_empty() => Ok(()),
        None => Err(format!("text behind the root: {rest}")),
    }
}

/// Returns its name.
fn check_tag(tag: &str) -> Result<&str> {
    let (name, mut rest) = tag.split_once([' ', '\n']).unwrap_or((tag, ""));
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric()) {
        return Err(format!("<{tag}> has no name"));
    }
    let mut seen: Vec<&str> = Vec::new();
    while !rest.trim_start().is_empty() {
        let (key, after) = rest.split_once("=\"").ok_or(format!("no value in <{tag}>"))?;
        let (value, after) = after.split_once('"').ok_or(format!("an open value in <{tag}>"))?;
        let key = key.trim();
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if key.is_empty() || !key.chars().all(is_name) || seen.contains(&key) {
            return Err(format!("attribute {key:?} of <{tag}>"));
        }
        check_text(value)?;
        seen.push(key);
        rest = after;
    }
    Ok(name)
}

fn check_text(text: &str) -> Result<()> {
    let bare = text
        .split('&')
        .skip(1)
        .find(|rest| !ENTITIES.iter().any(|entity| rest.starts_with(entity)));
    match bare {
        Some(rest) => Err(format!("a bare &: &{rest}")),
        None => Ok(()),
    }
}

#[test]
fn what_is_not_well_formed_is_found() {
    assert_eq!(check("<a b=\"c\"><d/>&lt; text<e f=\"g\" h=\"\"/></a>\n"), Ok(()));
    for wrong in [
        "<a>",
        "<a></b>",
        "<a/></a>",
        "<a>&</a>",
        "<a b=c></a>",
        "<a b=\"c\" b=\"d\"/>",
        "<a b=\"&\"/>",
        "<a/> text",
        "text <a/>",
        "<a>1 < 2</a>",
    ] {
        assert!(check(wrong).is_err(), "{wrong}");
    }
}
