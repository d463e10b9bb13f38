//! `%` and str.format: the library's, with bounds on what they may ask for.

use std::panic::{catch_unwind, AssertUnwindSafe};

use minijinja::formatting::{format, FormatStyle};
use minijinja::{Error, Value};

use super::values::operation;

/// `pattern % args`, and the filter `format`.
pub fn printf(pattern: &str, args: &[Value]) -> Result<Value, Error> {
    if pattern.contains('*') {
        return Err(operation("a format must not take its width from a value".to_string()));
    }
    bounded(FormatStyle::Printf, pattern, args)
}

/// str.format.
pub fn str_format(pattern: &str, args: &[Value]) -> Result<Value, Error> {
    bounded(FormatStyle::StrFormat, pattern, args)
}

fn bounded(style: FormatStyle, pattern: &str, args: &[Value]) -> Result<Value, Error> {
    check_widths(pattern)?;
    // The library looks for a name's end byte by byte, and panics within a character.
    match catch_unwind(AssertUnwindSafe(|| format(style, pattern, args))) {
        Ok(text) => text.map(Value::from),
        Err(_) => Err(operation("a format names a value by other than ASCII letters".to_string())),
    }
}

/// Widths ask for memory.
fn check_widths(text: &str) -> Result<(), Error> {
    let mut digits = 0;
    for byte in text.bytes() {
        digits = if byte.is_ascii_digit() { digits + 1 } else { 0 };
        if digits > 5 {
            return Err(operation("a format has a number of more than 5 digits".to_string()));
        }
    }
    Ok(())
}
