//! The tests and functions that templates may use, as Jinja2 and transformers define them.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, Value};

use super::call::Arguments;
use super::limits::{now_s, refuse};
use super::operators::{contains, order_test};
use super::python::{as_int, is_int};
use super::text;
use super::values::{check_key, items, list, operation, to_text, Dict, Entries, Namespace};

/// The sandbox of Jinja2 has the same limit.
const MAX_RANGE: usize = 100_000;

pub fn register(env: &mut Environment) {
    register_tests(env);
    env.remove_global("debug");
    env.add_function("raise_exception", |message: Value| -> Result<Value, Error> {
        Err(refuse(to_text(&message)?))
    });
    env.add_function("strftime_now", |format: String| local_time(&format));
    env.add_function("range", |args: Rest<Value>| range(&args));
    env.add_function("dict", |args: Rest<Value>, kwargs: Kwargs| {
        dict(&Arguments::new("dict", args, kwargs))
    });
    env.add_function("namespace", |args: Rest<Value>, kwargs: Kwargs| {
        namespace(&Arguments::new("namespace", args, kwargs))
    });
}

fn register_tests(env: &mut Environment) {
    env.add_test("sequence", |value: Value| {
        matches!(
            value.kind(),
            ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined
        )
    });
    env.add_test("iterable", |value: Value| {
        matches!(
            value.kind(),
            ValueKind::Seq
                | ValueKind::Iterable
                | ValueKind::String
                | ValueKind::Map
                | ValueKind::Undefined
        )
    });
    env.add_test("mapping", |value: Value| value.downcast_object_ref::<Dict>().is_some());
    env.add_test("number", |value: Value| {
        matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
    });
    env.add_test("integer", |value: Value| value.is_integer());
    env.add_test("float", |value: Value| value.kind() == ValueKind::Number && !is_int(&value));
    env.add_test("callable", |value: Value| {
        matches!(value.kind(), ValueKind::Plain)
            && value.downcast_object_ref::<Namespace>().is_none()
    });
    for (name, method) in [("lower", "islower"), ("upper", "isupper")] {
        env.add_test(name, move |value: Value| -> Result<bool, Error> {
            Ok(text::classify(&to_text(&value)?, method).unwrap_or(false))
        });
    }
    env.add_test("in", |value: Value, container: Value| contains(&container, &value));
    let comparisons = [
        ("==", ["eq", "equalto", "=="]),
        ("!=", ["ne", "!=", "!="]),
        ("<", ["lt", "lessthan", "<"]),
        ("<=", ["le", "<=", "<="]),
        (">", ["gt", "greaterthan", ">"]),
        (">=", ["ge", ">=", ">="]),
    ];
    for (operator, names) in comparisons {
        for name in names {
            env.add_test(name, move |a: Value, b: Value| order_test(operator, &a, &b));
        }
    }
}

fn range(args: &[Value]) -> Result<Value, Error> {
    let mut numbers = Vec::new();
    for arg in args {
        match as_int(arg) {
            Some(number) => numbers.push(number),
            None => return Err(operation("range needs integers".to_string())),
        }
    }
    let (start, stop, step) = match numbers[..] {
        [stop] => (0, stop, 1),
        [start, stop] => (start, stop, 1),
        [start, stop, step] if step != 0 => (start, stop, step),
        _ => return Err(operation("range takes one to three integers".to_string())),
    };
    let distance = if step > 0 { stop - start } else { start - stop };
    let length = if distance <= 0 { 0 } else { (distance - 1) / step.abs() + 1 };
    if length > MAX_RANGE as i128 {
        return Err(operation(format!("range has more than {MAX_RANGE} items")));
    }
    list((0..length).map(|i| super::python::int_value(start + i * step)).collect())
}

fn dict(args: &Arguments) -> Result<Value, Error> {
    let mut entries = Entries::new();
    if let Some(source) = args.positional().first() {
        match source.downcast_object_ref::<Dict>() {
            Some(dict) => entries = dict.entries.clone(),
            None => {
                for pair in items(source)? {
                    let pair = items(&pair)?;
                    let [key, value] = pair.as_slice() else {
                        return Err(operation("dict needs pairs".to_string()));
                    };
                    check_key(key)?;
                    entries.insert(key.clone(), value.clone());
                }
            }
        }
    }
    for (name, value) in args.named() {
        entries.insert(Value::from(name), value);
    }
    Dict::build(entries)
}

fn namespace(args: &Arguments) -> Result<Value, Error> {
    let result = Namespace::default();
    if let Some(source) = args.positional().first() {
        let Some(dict) = source.downcast_object_ref::<Dict>() else {
            return Err(operation("namespace needs a dict or named values".to_string()));
        };
        for (name, value) in &dict.entries {
            result.set(&to_text(name)?, value.clone())?;
        }
    }
    for (name, value) in args.named() {
        result.set(&name, value)?;
    }
    Ok(Value::from_object(result))
}

/// strftime of the C library in the local time zone, as Python's datetime.now().strftime.
fn local_time(format: &str) -> Result<Value, Error> {
    if format.is_empty() {
        return Ok(Value::from(""));
    }
    let bad = || operation("strftime_now: the format cannot be used".to_string());
    // The space tells an empty result from one that does not fit.
    let pattern = std::ffi::CString::new(format!("{format} ")).map_err(|_| bad())?;
    let mut buffer = vec![0u8; 1024 + 16 * format.len().min(65536)];
    // SAFETY: all pointers are to live values, and the buffer's length is the one given.
    let length = unsafe {
        let now = now_s().unwrap_or_else(|| libc::time(std::ptr::null_mut()));
        let mut parts: libc::tm = std::mem::zeroed();
        if libc::localtime_r(&now, &mut parts).is_null() {
            return Err(bad());
        }
        libc::strftime(buffer.as_mut_ptr().cast(), buffer.len(), pattern.as_ptr(), &parts)
    };
    if length == 0 {
        return Err(bad());
    }
    Ok(Value::from(String::from_utf8_lossy(&buffer[..length - 1]).into_owned()))
}
