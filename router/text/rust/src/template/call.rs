//! Arguments of a function, filter or method: positional, then by name, as Python binds them.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, Value};

use super::python::{as_int, type_name};
use super::values::operation;

pub struct Arguments {
    name: String,
    positional: Vec<Value>,
    kwargs: Option<Kwargs>,
}

impl Arguments {
    /// `name` is for errors.
    pub fn new(name: &str, positional: Rest<Value>, kwargs: Kwargs) -> Arguments {
        Arguments { name: name.to_string(), positional: positional.0, kwargs: Some(kwargs) }
    }

    /// Of a method: the named ones come last, in one value.
    pub fn split(name: &str, args: &[Value]) -> Arguments {
        let (positional, kwargs) = match args.split_last() {
            Some((last, rest)) if last.is_kwargs() => {
                (rest.to_vec(), Kwargs::try_from(last.clone()).ok())
            }
            _ => (args.to_vec(), None),
        };
        Arguments { name: name.to_string(), positional, kwargs }
    }

    pub fn positional(&self) -> &[Value] {
        &self.positional
    }

    /// The names given, in order.
    pub fn named(&self) -> Vec<(String, Value)> {
        let Some(kwargs) = &self.kwargs else {
            return Vec::new();
        };
        let names: Vec<String> = kwargs.args().map(str::to_string).collect();
        names
            .into_iter()
            .filter_map(|name| {
                let value = kwargs.get::<Value>(&name).ok()?;
                Some((name, value))
            })
            .collect()
    }

    /// The argument at `index` or called `name`.
    pub fn get(&self, index: usize, name: &str) -> Option<Value> {
        if let Some(value) = self.positional.get(index) {
            return Some(value.clone());
        }
        self.kwargs.as_ref()?.get::<Value>(name).ok().filter(|value| !value.is_undefined())
    }

    /// Like `get`; None of Python counts as absent.
    pub fn some(&self, index: usize, name: &str) -> Option<Value> {
        self.get(index, name).filter(|value| !value.is_none())
    }

    pub fn text(&self, index: usize, name: &str) -> Result<String, Error> {
        match self.get(index, name) {
            Some(value) => self.as_text(&value),
            None => Err(operation(format!("{}: the argument {name:?} is missing", self.name))),
        }
    }

    pub fn text_or(&self, index: usize, name: &str, missing: &str) -> Result<String, Error> {
        match self.some(index, name) {
            Some(value) => self.as_text(&value),
            None => Ok(missing.to_string()),
        }
    }

    pub fn as_text(&self, value: &Value) -> Result<String, Error> {
        value.as_str().map(str::to_string).ok_or_else(|| {
            operation(format!("{} needs a string, not {}", self.name, type_name(value)))
        })
    }

    pub fn int(&self, index: usize, name: &str) -> Result<Option<i64>, Error> {
        let Some(value) = self.some(index, name) else {
            return Ok(None);
        };
        match as_int(&value) {
            Some(number) => Ok(Some(number.clamp(i64::MIN.into(), i64::MAX.into()) as i64)),
            None => {
                Err(operation(format!("{} needs an integer, not {}", self.name, type_name(&value))))
            }
        }
    }

    pub fn flag(&self, index: usize, name: &str, missing: bool) -> bool {
        self.get(index, name).map_or(missing, |value| value.is_true())
    }

    /// Refuses arguments that the function does not take.
    pub fn expect(&self, names: &[&str]) -> Result<(), Error> {
        if self.positional.len() > names.len() {
            return Err(operation(format!("{} takes {} arguments", self.name, names.len())));
        }
        match self.named().into_iter().find(|(name, _)| !names.contains(&name.as_str())) {
            Some((name, _)) => Err(operation(format!("{} has no argument {name:?}", self.name))),
            None => Ok(()),
        }
    }
}

pub fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}
