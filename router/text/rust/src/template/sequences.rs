//! Filters that order and pick the items of a sequence.

use std::cmp::Ordering;

use minijinja::{Error, Value};

use super::call::Arguments;
use super::limits;
use super::operators::{equal, order};
use super::values::{items, list, to_text};

/// `item.path` with dots and indices; what is not there is undefined.
pub fn attribute(item: &Value, path: &str) -> Value {
    let mut value = item.clone();
    for part in path.split('.') {
        value = match part.parse::<usize>() {
            Ok(index) => value.get_item_by_index(index).unwrap_or_default(),
            Err(_) => value.get_attr(part).unwrap_or_default(),
        };
    }
    value
}

/// What an item is compared by: its attributes, or itself; strings without case unless told.
fn keys(item: &Value, paths: Option<&Vec<String>>, case_sensitive: bool) -> Vec<Value> {
    let values = match paths {
        None => vec![item.clone()],
        Some(paths) => paths.iter().map(|path| attribute(item, path)).collect(),
    };
    let fold = |value: Value| match value.as_str() {
        Some(text) if !case_sensitive => Value::from(text.to_lowercase()),
        _ => value,
    };
    values.into_iter().map(fold).collect()
}

fn paths(args: &Arguments, index: usize) -> Result<Option<Vec<String>>, Error> {
    match args.some(index, "attribute") {
        None => Ok(None),
        Some(attribute) => Ok(Some(to_text(&attribute)?.split(',').map(str::to_string).collect())),
    }
}

pub fn sort(value: &Value, args: &Arguments) -> Result<Value, Error> {
    args.expect(&["reverse", "case_sensitive", "attribute"])?;
    let (reverse, case_sensitive) =
        (args.flag(0, "reverse", false), args.flag(1, "case_sensitive", false));
    let paths = paths(args, 2)?;
    let mut keyed: Vec<(Vec<Value>, Value)> = items(value)?
        .into_iter()
        .map(|item| (keys(&item, paths.as_ref(), case_sensitive), item))
        .collect();
    limits::check()?;
    let mut failure = None;
    keyed.sort_by(|a, b| {
        let result = compare_keys(&a.0, &b.0).unwrap_or_else(|error| {
            failure = Some(error);
            Ordering::Equal
        });
        if reverse {
            result.reverse()
        } else {
            result
        }
    });
    match failure {
        Some(error) => Err(error),
        None => list(keyed.into_iter().map(|(_, item)| item).collect()),
    }
}

fn compare_keys(a: &[Value], b: &[Value]) -> Result<Ordering, Error> {
    for (x, y) in a.iter().zip(b) {
        if !equal(x, y) {
            return Ok(order("<", x, y)?.unwrap_or(Ordering::Equal));
        }
    }
    Ok(Ordering::Equal)
}

pub fn unique(value: &Value, args: &Arguments) -> Result<Value, Error> {
    args.expect(&["case_sensitive", "attribute"])?;
    let case_sensitive = args.flag(0, "case_sensitive", false);
    let paths = paths(args, 1)?;
    let mut seen = std::collections::HashSet::new();
    let mut result = Vec::new();
    for item in items(value)? {
        if seen.insert(keys(&item, paths.as_ref(), case_sensitive)) {
            result.push(item);
        }
    }
    list(result)
}
