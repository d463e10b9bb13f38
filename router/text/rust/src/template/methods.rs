//! Methods of Python's str, list and dict. Anything else is unknown, so it is an error; methods
//! that change their object are refused, as in the sandbox that transformers uses.

use std::sync::Arc;

use minijinja::value::{Object, ObjectRepr};
use minijinja::{Error, ErrorKind, State, Value};

use super::call::{is_sequence, Arguments};
use super::formats;
use super::limits::{self, Text};
use super::text::{self, Side};
use super::values::{check_count, items, list, operation, to_text, tuple, Dict, Entries, List};

const DICT_METHODS: [&str; 5] = ["get", "keys", "values", "items", "copy"];
const LIST_METHODS: [&str; 3] = ["count", "index", "copy"];
const TEXT_METHODS: [&str; 40] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "endswith",
    "find",
    "format",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "upper",
];

/// A method that was named but not called yet.
#[derive(Debug)]
pub struct Method {
    pub target: Value,
    pub name: String,
}

impl Object for Method {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        self.target.call_method(state, &self.name, args)
    }

    fn render(self: &Arc<Self>, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "<method {}>", self.name)
    }
}

pub fn is_method(value: &Value, name: &str) -> bool {
    if value.as_str().is_some() {
        TEXT_METHODS.contains(&name)
    } else if value.downcast_object_ref::<Dict>().is_some() {
        DICT_METHODS.contains(&name)
    } else {
        value.downcast_object_ref::<List>().is_some() && LIST_METHODS.contains(&name)
    }
}

/// The sandbox hides these, and members of the same name with them.
pub fn changes_dict(name: &str) -> bool {
    ["clear", "pop", "popitem", "setdefault", "update"].contains(&name)
}

fn unknown() -> Error {
    Error::from(ErrorKind::UnknownMethod)
}

pub fn call_list(values: &[Value], method: &str, args: &[Value]) -> Result<Value, Error> {
    limits::check()?;
    let args = Arguments::split(method, args);
    let found = |value: &Value| args.get(0, "value").is_some_and(|wanted| *value == wanted);
    match method {
        "count" => Ok(Value::from(values.iter().filter(|value| found(value)).count())),
        "index" => match values.iter().position(found) {
            Some(index) => Ok(Value::from(index)),
            None => Err(operation("index: the value is not in the list".to_string())),
        },
        "copy" => list(values.to_vec()),
        _ => Err(unknown()),
    }
}

pub fn call_dict(entries: &Entries, method: &str, args: &[Value]) -> Result<Value, Error> {
    limits::check()?;
    let args = Arguments::split(method, args);
    match method {
        "get" => {
            args.expect(&["key", "default"])?;
            let key = args.get(0, "key").unwrap_or_default();
            super::values::check_key(&key)?;
            let missing = args.get(1, "default").unwrap_or_else(|| Value::from(()));
            Ok(entries.get(&key).cloned().unwrap_or(missing))
        }
        "keys" => list(entries.keys().cloned().collect()),
        "values" => list(entries.values().cloned().collect()),
        "items" => list(pairs(entries)?),
        "copy" => Dict::build(entries.clone()),
        _ => Err(unknown()),
    }
}

pub fn pairs(entries: &Entries) -> Result<Vec<Value>, Error> {
    entries.iter().map(|(key, value)| tuple(vec![key.clone(), value.clone()])).collect()
}

/// minijinja's hook for methods of values that are not objects.
pub fn call_text(
    _state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    limits::check()?;
    let Some(text) = value.as_str() else {
        return Err(unknown());
    };
    if method == "format" {
        return formats::str_format(text, args);
    }
    let args = Arguments::split(method, args);
    if let Some(result) = text::classify(text, method) {
        return Ok(Value::from(result));
    }
    match method {
        "upper" => Ok(Value::from(text.to_uppercase())),
        "lower" | "casefold" => Ok(Value::from(text.to_lowercase())),
        "capitalize" => Ok(Value::from(text::capitalize(text))),
        "title" => Ok(Value::from(text::title(text))),
        "swapcase" => Ok(Value::from(text::swap_case(text))),
        "strip" => strip(text, &args, Side::Both),
        "lstrip" => strip(text, &args, Side::Left),
        "rstrip" => strip(text, &args, Side::Right),
        "removeprefix" => {
            let prefix = args.text(0, "prefix")?;
            Ok(Value::from(text.strip_prefix(prefix.as_str()).unwrap_or(text)))
        }
        "removesuffix" => {
            let suffix = args.text(0, "suffix")?;
            Ok(Value::from(text.strip_suffix(suffix.as_str()).unwrap_or(text)))
        }
        "replace" => {
            let count = args.int(2, "count")?.unwrap_or(-1);
            replace(text, &args.text(0, "old")?, &args.text(1, "new")?, count)
        }
        "split" => split(text, &args, false),
        "rsplit" => split(text, &args, true),
        "splitlines" => list(strings(text::split_lines(text, args.flag(0, "keepends", false)))?),
        "partition" => partition(text, &args.text(0, "sep")?, false),
        "rpartition" => partition(text, &args.text(0, "sep")?, true),
        "join" => join(text, &args.get(0, "iterable").unwrap_or_default()),
        "startswith" | "endswith" => affix(text, method == "startswith", &args),
        "find" | "rfind" | "index" | "rindex" | "count" => search(text, method, &args),
        "center" | "ljust" | "rjust" | "zfill" => pad(text, method, &args),
        _ => Err(unknown()),
    }
}

fn strings(pieces: Vec<&str>) -> Result<Vec<Value>, Error> {
    check_count(pieces.len())?;
    Ok(pieces.into_iter().map(Value::from).collect())
}

fn strip(text: &str, args: &Arguments, side: Side) -> Result<Value, Error> {
    args.expect(&["chars"])?;
    match args.some(0, "chars") {
        None => Ok(Value::from(text::strip(text, side, text::is_space))),
        Some(chars) => {
            let chars = args.as_text(&chars)?;
            Ok(Value::from(text::strip(text, side, |c| chars.contains(c))))
        }
    }
}

pub fn replace(text: &str, old: &str, new: &str, count: i64) -> Result<Value, Error> {
    let limit = usize::try_from(count).unwrap_or(usize::MAX);
    let mut out = Text::default();
    let mut rest = 0;
    for (at, found) in text.match_indices(old).take(limit) {
        out.push(&text[rest..at])?;
        out.push(new)?;
        rest = at + found.len();
    }
    out.push(&text[rest..])?;
    Ok(Value::from(out.finish()))
}

fn split(text: &str, args: &Arguments, from_right: bool) -> Result<Value, Error> {
    args.expect(&["sep", "maxsplit"])?;
    let limit = usize::try_from(args.int(1, "maxsplit")?.unwrap_or(-1)).unwrap_or(usize::MAX);
    let pieces = match args.some(0, "sep") {
        None => text::split_spaces(text, limit, from_right),
        Some(separator) => {
            let separator = args.as_text(&separator)?;
            if separator.is_empty() {
                return Err(operation(format!("{}: empty separator", "split")));
            }
            let pieces = limit.saturating_add(1);
            if from_right {
                let mut pieces: Vec<&str> = text.rsplitn(pieces, separator.as_str()).collect();
                pieces.reverse();
                pieces
            } else {
                text.splitn(pieces, separator.as_str()).collect()
            }
        }
    };
    list(strings(pieces)?)
}

fn partition(text: &str, separator: &str, from_right: bool) -> Result<Value, Error> {
    if separator.is_empty() {
        return Err(operation("partition: empty separator".to_string()));
    }
    let split = if from_right { text.rsplit_once(separator) } else { text.split_once(separator) };
    tuple(strings(match split {
        Some((head, tail)) => vec![head, separator, tail],
        None if from_right => vec!["", "", text],
        None => vec![text, "", ""],
    })?)
}

fn join(separator: &str, values: &Value) -> Result<Value, Error> {
    let mut out = Text::default();
    for (i, value) in items(values)?.iter().enumerate() {
        if i > 0 {
            out.push(separator)?;
        }
        match value.as_str() {
            Some(text) => out.push(text)?,
            None => return Err(operation("join needs strings".to_string())),
        }
    }
    Ok(Value::from(out.finish()))
}

/// `text[start:end]` of the arguments at `index` and after, and the offset of it in characters.
fn part<'a>(text: &'a str, args: &Arguments, index: usize) -> Result<(&'a str, i64), Error> {
    let (start, end) = (args.int(index, "start")?, args.int(index + 1, "end")?);
    if start.is_none() && end.is_none() {
        return Ok((text, 0));
    }
    let length = text.chars().count() as i64;
    let clamp = |value: i64| (if value < 0 { value + length } else { value }).clamp(0, length);
    let (start, end) = (clamp(start.unwrap_or(0)), clamp(end.unwrap_or(length)));
    Ok((text::characters(text, start as usize, end as usize), start))
}

fn affix(text: &str, at_start: bool, args: &Arguments) -> Result<Value, Error> {
    let (text, _) = part(text, args, 1)?;
    let wanted = args.get(0, "affix").unwrap_or_default();
    let candidates = if is_sequence(&wanted) { items(&wanted)? } else { vec![wanted] };
    for candidate in candidates {
        let affix = args.as_text(&candidate)?;
        if if at_start { text.starts_with(&affix) } else { text.ends_with(&affix) } {
            return Ok(Value::from(true));
        }
    }
    Ok(Value::from(false))
}

fn search(text: &str, method: &str, args: &Arguments) -> Result<Value, Error> {
    let wanted = args.text(0, "sub")?;
    let (text, offset) = part(text, args, 1)?;
    if method == "count" {
        return Ok(Value::from(text.matches(wanted.as_str()).count()));
    }
    let found = if method.starts_with('r') { text.rfind(&wanted) } else { text.find(&wanted) };
    match found {
        Some(at) => Ok(Value::from(text[..at].chars().count() as i64 + offset)),
        None if method.ends_with("index") => {
            Err(operation(format!("{method}: the substring is not in the string")))
        }
        None => Ok(Value::from(-1)),
    }
}

fn pad(text: &str, method: &str, args: &Arguments) -> Result<Value, Error> {
    let width = args.int(0, "width")?.unwrap_or(0).clamp(0, 1_000_000) as usize;
    let missing = width.saturating_sub(text.chars().count());
    let fill = if method == "zfill" { "0".to_string() } else { args.text_or(1, "fill", " ")? };
    // Python puts the odd space of center() to the left only when the width is odd.
    let left = match method {
        "center" => missing / 2 + (missing & width & 1),
        "ljust" => 0,
        _ => missing,
    };
    let (sign, text) = match text.strip_prefix(['-', '+']) {
        Some(digits) if method == "zfill" => (&text[..1], digits),
        _ => ("", text),
    };
    let mut out = Text::default();
    out.push(sign)?;
    out.repeat(&fill, left)?;
    out.push(text)?;
    out.repeat(&fill, missing - left)?;
    Ok(Value::from(out.finish()))
}

/// `separator.join` of the filter: any values, by their text.
pub fn join_values(values: &[Value], separator: &str) -> Result<Value, Error> {
    let mut out = Text::default();
    for (i, value) in values.iter().enumerate() {
        if i > 0 {
            out.push(separator)?;
        }
        out.push(&to_text(value)?)?;
    }
    Ok(Value::from(out.finish()))
}
