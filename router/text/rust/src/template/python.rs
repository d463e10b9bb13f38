//! str() and repr() of Python for template values.

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use super::limits::Text;
use super::values::{Dict, List};

pub fn write_str(value: &Value, out: &mut Text) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => out.push(text),
        None if value.is_undefined() => Ok(()),
        None => write_repr(value, out),
    }
}

pub fn write_repr(value: &Value, out: &mut Text) -> Result<(), Error> {
    if let Some(text) = value.as_str() {
        return write_quoted(text, out);
    }
    if let Some(list) = value.downcast_object_ref::<List>() {
        return write_list(list, out);
    }
    if let Some(dict) = value.downcast_object_ref::<Dict>() {
        return write_dict(dict, out);
    }
    match value.kind() {
        ValueKind::Undefined => out.push("Undefined"),
        ValueKind::Number => out.push(&number(value)),
        _ => out.push(&value.to_string()),
    }
}

pub fn repr_items(list: &List) -> Result<String, Error> {
    let mut out = Text::default();
    write_list(list, &mut out)?;
    Ok(out.finish())
}

pub fn repr_dict(dict: &Dict) -> Result<String, Error> {
    let mut out = Text::default();
    write_dict(dict, &mut out)?;
    Ok(out.finish())
}

fn write_list(list: &List, out: &mut Text) -> Result<(), Error> {
    out.push(if list.tuple { "(" } else { "[" })?;
    for (i, item) in list.items.iter().enumerate() {
        if i > 0 {
            out.push(", ")?;
        }
        write_repr(item, out)?;
    }
    match (list.tuple, list.items.len()) {
        (true, 1) => out.push(",)"),
        (true, _) => out.push(")"),
        (false, _) => out.push("]"),
    }
}

fn write_dict(dict: &Dict, out: &mut Text) -> Result<(), Error> {
    out.push("{")?;
    for (i, (key, value)) in dict.entries.iter().enumerate() {
        if i > 0 {
            out.push(", ")?;
        }
        write_repr(key, out)?;
        out.push(": ")?;
        write_repr(value, out)?;
    }
    out.push("}")
}

fn write_quoted(text: &str, out: &mut Text) -> Result<(), Error> {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push_char(quote)?;
    for c in text.chars() {
        match c {
            '\n' => out.push("\\n")?,
            '\r' => out.push("\\r")?,
            '\t' => out.push("\\t")?,
            '\\' => out.push("\\\\")?,
            c if c == quote => {
                out.push_char('\\')?;
                out.push_char(c)?;
            }
            c if is_printable(c) => out.push_char(c)?,
            c if (c as u32) < 0x100 => out.push(&format!("\\x{:02x}", c as u32))?,
            c if (c as u32) < 0x10000 => out.push(&format!("\\u{:04x}", c as u32))?,
            c => out.push(&format!("\\U{:08x}", c as u32))?,
        }
    }
    out.push_char(quote)
}

/// str.isprintable, without the unassigned code points.
fn is_printable(c: char) -> bool {
    !c.is_control()
        && (c == ' ' || !c.is_whitespace())
        && !matches!(c as u32,
            0xAD | 0x600..=0x605 | 0x61C | 0x6DD | 0x70F | 0x180E | 0x200B..=0x200F
            | 0x202A..=0x202E | 0x2060..=0x206F | 0xE000..=0xF8FF | 0xFEFF | 0xFFF0..=0xFFFB
            | 0xFFFE..=0xFFFF | 0xE0000..=0xE0FFF | 0xF0000..=0x10FFFF)
}

/// True for int and bool values, not for floats.
pub fn is_int(value: &Value) -> bool {
    value.is_integer() || value.kind() == ValueKind::Bool
}

pub fn as_int(value: &Value) -> Option<i128> {
    match value.kind() {
        ValueKind::Bool => Some(i128::from(value.is_true())),
        ValueKind::Number if value.is_integer() => i128::try_from(value.clone()).ok(),
        _ => None,
    }
}

pub fn as_float(value: &Value) -> Option<f64> {
    match value.kind() {
        ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        ValueKind::Number => f64::try_from(value.clone()).ok(),
        _ => None,
    }
}

pub fn int_value(value: i128) -> Value {
    i64::try_from(value).map_or_else(|_| Value::from(value), Value::from)
}

fn number(value: &Value) -> String {
    match as_int(value) {
        Some(value) => value.to_string(),
        None => float_repr(as_float(value).unwrap_or(f64::NAN)),
    }
}

/// repr(float): the shortest digits that read back, in the form that Python chooses.
pub fn float_repr(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_string();
    }
    if value.is_infinite() {
        return if value < 0.0 { "-inf" } else { "inf" }.to_string();
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let mut text = format!("{value}");
        if !text.contains('.') {
            text.push_str(".0");
        }
        return text;
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

pub fn type_name(value: &Value) -> &'static str {
    match value.kind() {
        ValueKind::Undefined => "an undefined value",
        ValueKind::None => "None",
        ValueKind::Bool => "a bool",
        ValueKind::Number => "a number",
        ValueKind::String => "a string",
        ValueKind::Seq | ValueKind::Iterable => "a list",
        ValueKind::Map => "a dict",
        _ => "an object",
    }
}
