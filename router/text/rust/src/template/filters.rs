//! Jinja2's filters where minijinja's differ, lack something, or could make something large.
//! The others are minijinja's own.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, Value};

use super::call::Arguments;
use super::formats;
use super::json;
use super::limits::{self, Text};
use super::methods;
use super::operators::to_int;
use super::python::{as_float, as_int, int_value, is_int, type_name};
use super::sequences;
use super::text::{self, Side};
use super::values::{items, list, operation, to_text, Dict};

/// Filters of minijinja that Jinja2 does not have.
const FOREIGN: [&str; 6] = ["split", "lines", "bool", "chain", "zip", "pprint"];

type Function = fn(&Value, &Arguments) -> Result<Value, Error>;

pub fn register(env: &mut Environment) {
    for name in FOREIGN {
        env.remove_filter(name);
    }
    let own: [(&'static str, Function); 34] = [
        ("capitalize", |value, _| Ok(Value::from(text::capitalize(&to_text(value)?)))),
        ("lower", |value, _| Ok(Value::from(to_text(value)?.to_lowercase()))),
        ("upper", |value, _| Ok(Value::from(to_text(value)?.to_uppercase()))),
        ("title", |value, _| Ok(Value::from(text::title_words(&to_text(value)?)))),
        ("string", |value, _| Ok(Value::from(to_text(value)?))),
        ("safe", |value, _| Ok(Value::from(to_text(value)?))),
        ("wordcount", |value, _| Ok(Value::from(word_count(&to_text(value)?)))),
        ("escape", escape),
        ("e", escape),
        ("forceescape", escape),
        ("length", length),
        ("count", length),
        ("first", |value, _| end(value, true)),
        ("last", |value, _| end(value, false)),
        ("list", |value, _| list(items(value)?)),
        ("items", dict_items),
        ("reverse", reverse),
        ("default", default),
        ("d", default),
        ("trim", trim),
        ("replace", replace),
        ("join", join),
        ("indent", indent),
        ("center", center),
        ("int", int),
        ("float", float),
        ("round", round),
        ("abs", absolute),
        ("format", printf),
        ("batch", batch),
        ("slice", slice),
        ("tojson", json::to_json),
        ("sort", sequences::sort),
        ("unique", sequences::unique),
    ];
    for (name, function) in own {
        env.add_filter(name, move |value: Value, args: Rest<Value>, kwargs: Kwargs| {
            // `map` calls filters in one instruction, so each of them looks at the limits.
            limits::check()?;
            function(&value, &Arguments::new(name, args, kwargs))
        });
    }
    env.add_filter("\u{1}iter", iterate);
    env.add_filter("\u{1}sequence", |value: Value| match value.is_true() {
        true => list(items(&value)?),
        false => list(Vec::new()),
    });
}

/// What a for loop goes over.
fn iterate(value: Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Seq | ValueKind::Map | ValueKind::Undefined => Ok(value),
        _ => list(items(&value)?),
    }
}

fn word_count(text: &str) -> usize {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty()).count()
}

fn escape(value: &Value, _: &Arguments) -> Result<Value, Error> {
    let mut out = Text::default();
    for c in to_text(value)?.chars() {
        match c {
            '&' => out.push("&amp;")?,
            '<' => out.push("&lt;")?,
            '>' => out.push("&gt;")?,
            '\'' => out.push("&#39;")?,
            '"' => out.push("&#34;")?,
            c => out.push_char(c)?,
        }
    }
    Ok(Value::from(out.finish()))
}

fn length(value: &Value, _: &Arguments) -> Result<Value, Error> {
    if value.is_undefined() {
        return Ok(Value::from(0));
    }
    match value.len() {
        Some(length) => Ok(Value::from(length)),
        None => Err(operation(format!("{} has no length", type_name(value)))),
    }
}

fn end(value: &Value, first: bool) -> Result<Value, Error> {
    let items = items(value)?;
    let item = if first { items.first() } else { items.last() };
    Ok(item.cloned().unwrap_or_default())
}

fn dict_items(value: &Value, _: &Arguments) -> Result<Value, Error> {
    if value.is_undefined() {
        return list(Vec::new());
    }
    match value.downcast_object_ref::<Dict>() {
        Some(dict) => list(methods::pairs(&dict.entries)?),
        None => Err(operation(format!("items needs a dict, not {}", type_name(value)))),
    }
}

fn reverse(value: &Value, _: &Arguments) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        return Ok(Value::from(text.chars().rev().collect::<String>()));
    }
    let mut items = items(value)?;
    items.reverse();
    list(items)
}

fn default(value: &Value, args: &Arguments) -> Result<Value, Error> {
    args.expect(&["default_value", "boolean"])?;
    let absent = value.is_undefined() || (args.flag(1, "boolean", false) && !value.is_true());
    if !absent {
        return Ok(value.clone());
    }
    Ok(args.get(0, "default_value").unwrap_or_else(|| Value::from("")))
}

fn trim(value: &Value, args: &Arguments) -> Result<Value, Error> {
    args.expect(&["chars"])?;
    let text = to_text(value)?;
    let trimmed = match args.some(0, "chars") {
        None => text::strip(&text, Side::Both, text::is_space),
        Some(chars) => {
            let chars = args.as_text(&chars)?;
            text::strip(&text, Side::Both, |c| chars.contains(c))
        }
    };
    Ok(Value::from(trimmed))
}

fn replace(value: &Value, args: &Arguments) -> Result<Value, Error> {
    args.expect(&["old", "new", "count"])?;
    let count = args.int(2, "count")?.unwrap_or(-1);
    let old = to_text(&args.get(0, "old").unwrap_or_default())?;
    let new = to_text(&args.get(1, "new").unwrap_or_default())?;
    methods::replace(&to_text(value)?, &old, &new, count)
}

fn join(value: &Value, args: &Arguments) -> Result<Value, Error> {
    args.expect(&["d", "attribute"])?;
    let separator = to_text(&args.some(0, "d").unwrap_or_else(|| Value::from("")))?;
    let mut values = items(value)?;
    if let Some(path) = args.some(1, "attribute") {
        let path = to_text(&path)?;
        values = values.iter().map(|item| sequences::attribute(item, &path)).collect();
    }
    methods::join_values(&values, &separator)
}

fn indent(value: &Value, args: &Arguments) -> Result<Value, Error> {
    args.expect(&["width", "first", "blank"])?;
    let prefix = match args.some(0, "width") {
        Some(width) if width.as_str().is_some() => to_text(&width)?,
        _ => " ".repeat(args.int(0, "width")?.unwrap_or(4).clamp(0, 1000) as usize),
    };
    let (first, blank) = (args.flag(1, "first", false), args.flag(2, "blank", false));
    let source = args.as_text(value)? + "\n";
    let lines = text::split_lines(&source, false);
    let mut out = Text::default();
    for (i, line) in lines.iter().enumerate() {
        if i > 0 {
            out.push("\n")?;
        }
        if if i == 0 { first } else { blank || !line.is_empty() } {
            out.push(&prefix)?;
        }
        out.push(line)?;
    }
    Ok(Value::from(out.finish()))
}

fn center(value: &Value, args: &Arguments) -> Result<Value, Error> {
    let text = to_text(value)?;
    let width = args.int(0, "width")?.unwrap_or(80).clamp(0, 1_000_000) as usize;
    let missing = width.saturating_sub(text.chars().count());
    let left = missing / 2 + (missing & width & 1);
    Ok(Value::from(format!("{}{text}{}", " ".repeat(left), " ".repeat(missing - left))))
}

fn int(value: &Value, args: &Arguments) -> Result<Value, Error> {
    args.expect(&["default", "base"])?;
    let base = args.int(1, "base")?.unwrap_or(10).clamp(2, 36) as u32;
    if let Some(number) = to_int(value, base) {
        return Ok(int_value(number));
    }
    let prefix = match base {
        2 => "0b",
        8 => "0o",
        16 => "0x",
        _ => "",
    };
    let text = to_text(value)?.trim().to_lowercase();
    if let Some(digits) = text.strip_prefix(prefix).filter(|_| !prefix.is_empty()) {
        if let Ok(number) = i128::from_str_radix(digits, base) {
            return Ok(int_value(number));
        }
    }
    match parse_float(&text).filter(|number| number.is_finite() && number.abs() < 1e36) {
        Some(number) => Ok(int_value(number as i128)),
        None => Ok(args.get(0, "default").unwrap_or_else(|| Value::from(0))),
    }
}

fn parse_float(text: &str) -> Option<f64> {
    text.trim().replace('_', "").parse().ok()
}

fn float(value: &Value, args: &Arguments) -> Result<Value, Error> {
    args.expect(&["default"])?;
    let number = match value.as_str() {
        Some(text) => parse_float(text),
        None => as_float(value),
    };
    match number {
        Some(number) => Ok(Value::from(number)),
        None => Ok(args.get(0, "default").unwrap_or_else(|| Value::from(0.0))),
    }
}

fn round(value: &Value, args: &Arguments) -> Result<Value, Error> {
    args.expect(&["precision", "method"])?;
    let precision = args.int(0, "precision")?.unwrap_or(0).clamp(-300, 300) as i32;
    let method = args.text_or(1, "method", "common")?;
    let number = as_float(value)
        .ok_or_else(|| operation(format!("round needs a number, not {}", type_name(value))))?;
    let scale = 10f64.powi(precision);
    match method.as_str() {
        "ceil" => Ok(Value::from((number * scale).ceil() / scale)),
        "floor" => Ok(Value::from((number * scale).floor() / scale)),
        "common" if is_int(value) && precision >= 0 => {
            Ok(int_value(as_int(value).unwrap_or_default()))
        }
        "common" if precision < 0 => Ok(Value::from((number * scale).round_ties_even() / scale)),
        "common" => {
            let digits = precision as usize;
            Ok(Value::from(format!("{number:.digits$}").parse().unwrap_or(number)))
        }
        _ => Err(operation(format!("round: unknown method {method:?}"))),
    }
}

fn absolute(value: &Value, _: &Arguments) -> Result<Value, Error> {
    match (as_int(value), as_float(value)) {
        (Some(number), _) => Ok(int_value(number.saturating_abs())),
        (None, Some(number)) => Ok(Value::from(number.abs())),
        _ => Err(operation(format!("abs needs a number, not {}", type_name(value)))),
    }
}

fn printf(value: &Value, args: &Arguments) -> Result<Value, Error> {
    let pattern = to_text(value)?;
    let named = args.named();
    if named.is_empty() {
        return formats::printf(&pattern, args.positional());
    }
    let values = Value::from_pairs(named.into_iter().map(|(name, value)| (name, value)));
    formats::printf(&pattern, &[values])
}

fn batch(value: &Value, args: &Arguments) -> Result<Value, Error> {
    args.expect(&["linecount", "fill_with"])?;
    let size = args.int(0, "linecount")?.unwrap_or(1).clamp(1, 1_000_000) as usize;
    let mut batches = Vec::new();
    for part in items(value)?.chunks(size) {
        let mut part = part.to_vec();
        if let Some(fill) = args.some(1, "fill_with") {
            part.resize(size, fill);
        }
        batches.push(list(part)?);
    }
    list(batches)
}

fn slice(value: &Value, args: &Arguments) -> Result<Value, Error> {
    args.expect(&["slices", "fill_with"])?;
    let count = args.int(0, "slices")?.unwrap_or(1).clamp(1, 100_000) as usize;
    let values = items(value)?;
    let (size, longer) = (values.len() / count, values.len() % count);
    let mut slices = Vec::new();
    let mut start = 0;
    for i in 0..count {
        let end = start + size + usize::from(i < longer);
        let mut part = values[start..end].to_vec();
        if let Some(fill) = args.some(1, "fill_with").filter(|_| i >= longer && longer > 0) {
            part.push(fill);
        }
        slices.push(list(part)?);
        start = end;
    }
    list(slices)
}
