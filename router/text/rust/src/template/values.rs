//! The containers that templates work on. They print as Python's do, and each knows its depth and
//! total size, so that no template can build one which is too expensive to walk, print or drop.

use std::sync::{Arc, Mutex};

use indexmap::IndexMap;
use minijinja::value::{Enumerator, Object, ObjectRepr, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::limits::{self, exceeded, Text};
use super::methods;

const MAX_DEPTH: u32 = 200;
const MAX_SIZE_BYTES: usize = 128 << 20;
const NODE_BYTES: usize = 24;

/// Of a value with all that is in it; what is in it twice counts twice.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measure {
    bytes: usize,
    depth: u32,
    /// It holds a namespace, the only thing that changes after it was made.
    mutable: bool,
}

impl Measure {
    fn of(value: &Value) -> Result<Measure, Error> {
        if let Some(text) = value.as_str() {
            return Ok(Measure { bytes: NODE_BYTES + text.len(), ..Measure::default() });
        }
        let leaf = Measure { bytes: NODE_BYTES, ..Measure::default() };
        if value.as_object().is_none() {
            return Ok(leaf);
        }
        if let Some(list) = value.downcast_object_ref::<List>() {
            Ok(list.measure)
        } else if let Some(dict) = value.downcast_object_ref::<Dict>() {
            Ok(dict.measure)
        } else if value.downcast_object_ref::<Namespace>().is_some() {
            Ok(Measure { mutable: true, ..leaf })
        } else {
            // Macros, functions and `loop`: they hold no values that a template can choose.
            Ok(leaf)
        }
    }

    fn add(&mut self, item: &Value) -> Result<(), Error> {
        let inner = Measure::of(item)?;
        self.bytes = self.bytes.saturating_add(inner.bytes);
        self.depth = self.depth.max(inner.depth);
        self.mutable |= inner.mutable;
        Ok(())
    }

    fn close(mut self) -> Result<Measure, Error> {
        self.bytes = self.bytes.saturating_add(NODE_BYTES);
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(exceeded("a value is nested too deeply"));
        }
        if self.bytes > MAX_SIZE_BYTES {
            return Err(exceeded("a list or dict is too large"));
        }
        Ok(self)
    }
}

#[derive(Debug)]
pub struct List {
    pub items: Vec<Value>,
    pub tuple: bool,
    /// Names of the items, if they can be had by name too.
    names: &'static [&'static str],
    measure: Measure,
}

impl List {
    pub fn build(items: Vec<Value>, tuple: bool) -> Result<Value, Error> {
        List::named(items, tuple, &[])
    }

    fn named(
        items: Vec<Value>,
        tuple: bool,
        names: &'static [&'static str],
    ) -> Result<Value, Error> {
        let mut measure = Measure::default();
        for item in &items {
            measure.add(item)?;
        }
        let measure = measure.close()?;
        Ok(Value::from_object(List { items, tuple, names, measure }))
    }
}

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        if let Some(name) = key.as_str() {
            let index = self.names.iter().position(|known| *known == name)?;
            return self.items.get(index).cloned();
        }
        let index = key.as_i64().filter(|_| key.kind() == ValueKind::Number)?;
        let length = self.items.len() as i64;
        let index = if index < 0 { index + length } else { index };
        usize::try_from(index).ok().and_then(|index| self.items.get(index)).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.items.len())
    }

    fn call_method(
        self: &Arc<Self>,
        _state: &mut State<'_, '_>,
        method: &str,
        args: &[Value],
    ) -> Result<Value, Error> {
        methods::call_list(&self.items, method, args)
    }

    fn render(self: &Arc<Self>, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&super::python::repr_items(self).map_err(|_| std::fmt::Error)?)
    }
}

pub type Entries = IndexMap<Value, Value>;

#[derive(Debug)]
pub struct Dict {
    pub entries: Entries,
    measure: Measure,
}

impl Dict {
    pub fn build(entries: Entries) -> Result<Value, Error> {
        let mut measure = Measure::default();
        for (key, value) in &entries {
            measure.add(key)?;
            measure.add(value)?;
        }
        let measure = measure.close()?;
        Ok(Value::from_object(Dict { entries, measure }))
    }
}

impl Object for Dict {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.entries.get(key).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.entries.keys().cloned().collect())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.entries.len())
    }

    fn call_method(
        self: &Arc<Self>,
        _state: &mut State<'_, '_>,
        method: &str,
        args: &[Value],
    ) -> Result<Value, Error> {
        methods::call_dict(&self.entries, method, args)
    }

    fn render(self: &Arc<Self>, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&super::python::repr_dict(self).map_err(|_| std::fmt::Error)?)
    }
}

/// `namespace(...)`: attributes that assignments inside of loops can change. It holds no other
/// namespace, so nothing can contain itself.
#[derive(Debug, Default)]
pub struct Namespace {
    attributes: Mutex<IndexMap<String, Value>>,
}

impl Namespace {
    pub fn set(&self, name: &str, value: Value) -> Result<(), Error> {
        if name.starts_with('_') {
            return Err(operation(format!("a namespace cannot store {name:?}: rename it")));
        }
        if Measure::of(&value)?.mutable {
            return Err(operation("a namespace cannot store a namespace".to_string()));
        }
        if let Ok(mut attributes) = self.attributes.lock() {
            attributes.insert(name.to_string(), value);
        }
        Ok(())
    }
}

impl Object for Namespace {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.attributes.lock().ok()?.get(key.as_str()?).cloned()
    }

    fn render(self: &Arc<Self>, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("<Namespace>")
    }
}

pub fn operation(message: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

pub fn list(items: Vec<Value>) -> Result<Value, Error> {
    List::build(items, false)
}

pub fn tuple(items: Vec<Value>) -> Result<Value, Error> {
    List::build(items, true)
}

/// Keys of a dict and members of `in` tests: what Python can hash.
pub fn check_key(key: &Value) -> Result<(), Error> {
    let hashable = match key.downcast_object_ref::<List>() {
        Some(list) => list.tuple,
        None => key.downcast_object_ref::<Dict>().is_none(),
    };
    if hashable {
        Ok(())
    } else {
        Err(operation("a list or dict cannot be the key of a dict".to_string()))
    }
}

/// Refuses a list of so many items before it takes the memory.
pub fn check_count(num_items: usize) -> Result<(), Error> {
    if num_items > MAX_SIZE_BYTES / NODE_BYTES {
        return Err(exceeded("a list or dict is too large"));
    }
    Ok(())
}

/// The items of anything that a for loop takes.
pub fn items(value: &Value) -> Result<Vec<Value>, Error> {
    if let Some(list) = value.downcast_object_ref::<List>() {
        return Ok(list.items.clone());
    }
    if let Some(text) = value.as_str() {
        check_count(text.len() / 4)?;
        return Ok(text.chars().map(Value::from).collect());
    }
    if value.is_none() || value.is_number() {
        return Err(operation(format!("{} is not iterable", super::python::type_name(value))));
    }
    let mut result = Vec::new();
    for item in value.try_iter()? {
        result.push(item);
        if result.len() % 4096 == 0 {
            limits::check()?;
        }
    }
    Ok(result)
}

/// A result of minijinja's own filters, with its containers replaced by ours.
pub fn adopt(value: Value) -> Result<Value, Error> {
    limits::check()?;
    adopt_below(value, 0)
}

fn adopt_below(value: Value, depth: u32) -> Result<Value, Error> {
    if depth > MAX_DEPTH {
        return Err(exceeded("a value is nested too deeply"));
    }
    if value.as_object().is_none() || is_own(&value) {
        return Ok(value);
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            // What groupby makes.
            let is_group = value.get_attr("grouper").is_ok_and(|found| !found.is_undefined());
            let names: &[&str] = if is_group { &["grouper", "list"] } else { &[] };
            let tuple = value.is_tuple() || is_group;
            let mut adopted = Vec::new();
            for item in items(&value)? {
                adopted.push(adopt_below(item, depth + 1)?);
            }
            List::named(adopted, tuple, names)
        }
        ValueKind::Invalid => Err(operation("a filter failed".to_string())),
        _ => Ok(value),
    }
}

fn is_own(value: &Value) -> bool {
    value.downcast_object_ref::<List>().is_some()
        || value.downcast_object_ref::<Dict>().is_some()
        || value.downcast_object_ref::<Namespace>().is_some()
}

pub fn from_json(value: &serde_json::Value) -> Result<Value, Error> {
    Ok(match value {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(value) => Value::from(*value),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(value), _) => Value::from(value),
            (None, Some(value)) => Value::from(value),
            _ => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => Value::from(text.as_str()),
        serde_json::Value::Array(items) => {
            list(items.iter().map(from_json).collect::<Result<_, Error>>()?)?
        }
        serde_json::Value::Object(members) => {
            let mut entries = Entries::new();
            for (key, value) in members {
                entries.insert(Value::from(key.as_str()), from_json(value)?);
            }
            Dict::build(entries)?
        }
    })
}

/// The text of a value, as `{{ value }}` and `~` print it.
pub fn to_text(value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_string());
    }
    let mut text = Text::default();
    super::python::write_str(value, &mut text)?;
    Ok(text.finish())
}
