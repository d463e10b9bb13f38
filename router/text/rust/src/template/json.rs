//! The tojson filter: Python's json.dumps with transformers' defaults.

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use super::call::Arguments;
use super::limits::Text;
use super::python::{as_float, as_int, float_repr, is_int, type_name};
use super::values::{operation, Dict, List};

struct Style {
    ensure_ascii: bool,
    sort_keys: bool,
    /// One level of indentation; None = all on one line.
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
}

pub fn to_json(value: &Value, args: &Arguments) -> Result<Value, Error> {
    args.expect(&["ensure_ascii", "indent", "separators", "sort_keys"])?;
    let indent = match args.some(1, "indent") {
        None => None,
        Some(value) => match value.as_str() {
            Some(text) => Some(text.to_string()),
            None => Some(" ".repeat(args.int(1, "indent")?.unwrap_or(0).clamp(0, 100) as usize)),
        },
    };
    let mut style = Style {
        ensure_ascii: args.flag(0, "ensure_ascii", false),
        sort_keys: args.flag(3, "sort_keys", false),
        item_separator: if indent.is_some() { "," } else { ", " }.to_string(),
        key_separator: ": ".to_string(),
        indent,
    };
    if let Some(separators) = args.some(2, "separators") {
        let pair = super::values::items(&separators)?;
        let [item, key] = pair.as_slice() else {
            return Err(operation("tojson: separators must be a pair of strings".to_string()));
        };
        style.item_separator = args.as_text(item)?;
        style.key_separator = args.as_text(key)?;
    }
    let mut out = Text::default();
    style.write(value, 0, &mut out)?;
    Ok(Value::from(out.finish()))
}

impl Style {
    fn write(&self, value: &Value, level: usize, out: &mut Text) -> Result<(), Error> {
        if let Some(text) = value.as_str() {
            return self.write_text(text, out);
        }
        if let Some(list) = value.downcast_object_ref::<List>() {
            return self.write_list(&list.items, level, out);
        }
        if let Some(dict) = value.downcast_object_ref::<Dict>() {
            return self.write_dict(dict, level, out);
        }
        match value.kind() {
            ValueKind::None => out.push("null"),
            ValueKind::Bool => out.push(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push(&number(value)),
            _ => Err(operation(format!("tojson cannot write {}", type_name(value)))),
        }
    }

    fn write_list(&self, items: &[Value], level: usize, out: &mut Text) -> Result<(), Error> {
        if items.is_empty() {
            return out.push("[]");
        }
        out.push("[")?;
        for (i, item) in items.iter().enumerate() {
            self.separate(i, level + 1, out)?;
            self.write(item, level + 1, out)?;
        }
        self.new_line(level, out)?;
        out.push("]")
    }

    fn write_dict(&self, dict: &Dict, level: usize, out: &mut Text) -> Result<(), Error> {
        if dict.entries.is_empty() {
            return out.push("{}");
        }
        let mut entries: Vec<(&Value, &Value)> = dict.entries.iter().collect();
        if self.sort_keys {
            entries.sort_by(|a, b| a.0.cmp(b.0));
        }
        out.push("{")?;
        for (i, (key, value)) in entries.into_iter().enumerate() {
            self.separate(i, level + 1, out)?;
            match key.kind() {
                ValueKind::String => self.write(key, level, out)?,
                ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                    out.push("\"")?;
                    self.write(key, level, out)?;
                    out.push("\"")?;
                }
                _ => return Err(operation("tojson: a key must be a string".to_string())),
            }
            out.push(&self.key_separator)?;
            self.write(value, level + 1, out)?;
        }
        self.new_line(level, out)?;
        out.push("}")
    }

    fn separate(&self, index: usize, level: usize, out: &mut Text) -> Result<(), Error> {
        if index > 0 {
            out.push(&self.item_separator)?;
        }
        self.new_line(level, out)
    }

    fn new_line(&self, level: usize, out: &mut Text) -> Result<(), Error> {
        match &self.indent {
            None => Ok(()),
            Some(indent) => {
                out.push("\n")?;
                out.repeat(indent, level)
            }
        }
    }

    fn write_text(&self, text: &str, out: &mut Text) -> Result<(), Error> {
        out.push("\"")?;
        for c in text.chars() {
            match c {
                '"' => out.push("\\\"")?,
                '\\' => out.push("\\\\")?,
                '\n' => out.push("\\n")?,
                '\r' => out.push("\\r")?,
                '\t' => out.push("\\t")?,
                '\u{8}' => out.push("\\b")?,
                '\u{c}' => out.push("\\f")?,
                c if (c as u32) < 0x20 => out.push(&format!("\\u{:04x}", c as u32))?,
                c if self.ensure_ascii && !(' '..='~').contains(&c) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        out.push(&format!("\\u{unit:04x}"))?;
                    }
                }
                c => out.push_char(c)?,
            }
        }
        out.push("\"")
    }
}

fn number(value: &Value) -> String {
    if is_int(value) {
        return as_int(value).unwrap_or_default().to_string();
    }
    let value = as_float(value).unwrap_or(f64::NAN);
    if value.is_nan() {
        "NaN".to_string()
    } else if value.is_infinite() {
        if value < 0.0 { "-Infinity" } else { "Infinity" }.to_string()
    } else {
        float_repr(value)
    }
}
