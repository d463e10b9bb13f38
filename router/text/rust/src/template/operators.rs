//! Python's operators on template values. The rewritten template calls them as filters whose names
//! begin with U+0001, which no template can write.

use std::cmp::Ordering;

use minijinja::value::{Rest, ValueKind};
use minijinja::{Environment, Error, Value};

use super::call::is_sequence;
use super::formats;
use super::limits::{self, exceeded, Text};
use super::methods::{self, Method};
use super::python::{as_float, as_int, int_value, is_int, type_name};
use super::text;
use super::values::{self, check_key, items, list, operation, Dict, Entries, List, Namespace};

const MAX_REPEATED_ITEMS: usize = 1_000_000;

pub fn register(env: &mut Environment) {
    env.add_filter("\u{1}add", |a: Value, b: Value| checked(add(&a, &b)));
    env.add_filter("\u{1}sub", |a: Value, b: Value| checked(arithmetic("-", &a, &b)));
    env.add_filter("\u{1}mul", |a: Value, b: Value| checked(multiply(&a, &b)));
    env.add_filter("\u{1}div", |a: Value, b: Value| checked(arithmetic("/", &a, &b)));
    env.add_filter("\u{1}floordiv", |a: Value, b: Value| checked(arithmetic("//", &a, &b)));
    env.add_filter("\u{1}rem", |a: Value, b: Value| checked(remainder(&a, &b)));
    env.add_filter("\u{1}pow", |a: Value, b: Value| checked(arithmetic("**", &a, &b)));
    env.add_filter("\u{1}concat", |a: Value, b: Value| checked(concat(&a, &b)));
    env.add_filter("\u{1}compare", |a: Value, rest: Rest<Value>| checked(compare_chain(a, &rest)));
    env.add_filter("\u{1}attr", |a: Value, name: String| checked(attr(&a, &name)));
    env.add_filter("\u{1}item", |a: Value, key: Value| checked(item(&a, &key)));
    env.add_filter("\u{1}slice", |a: Value, b: Value, c: Value, d: Value| {
        checked(slice(&a, [b, c, d]))
    });
    env.add_filter("\u{1}list", |rest: Rest<Value>| checked(list(rest.to_vec())));
    env.add_filter("\u{1}tuple", |rest: Rest<Value>| checked(values::tuple(rest.to_vec())));
    env.add_filter("\u{1}dict", |rest: Rest<Value>| checked(dict(&rest)));
    env.add_filter("\u{1}set", |a: Value, name: String, b: Value| checked(set(&a, &name, b)));
    env.add_filter("\u{1}adopt", values::adopt);
    env.add_filter("\u{1}check", |a: Value| checked(Ok(a)));
}

fn checked(result: Result<Value, Error>) -> Result<Value, Error> {
    let value = result?;
    limits::check()?;
    Ok(value)
}

fn unsupported(operator: &str, a: &Value, b: &Value) -> Error {
    operation(format!("{operator} does not apply to {} and {}", type_name(a), type_name(b)))
}

fn add(a: &Value, b: &Value) -> Result<Value, Error> {
    if let (Some(left), Some(right)) = (a.as_str(), b.as_str()) {
        return joined(left, right);
    }
    if let (Some(left), Some(right)) =
        (a.downcast_object_ref::<List>(), b.downcast_object_ref::<List>())
    {
        if left.tuple == right.tuple {
            let both = left.items.iter().chain(&right.items).cloned().collect();
            return List::build(both, left.tuple);
        }
    }
    arithmetic("+", a, b)
}

fn joined(left: &str, right: &str) -> Result<Value, Error> {
    let mut out = Text::default();
    out.push(left)?;
    out.push(right)?;
    Ok(Value::from(out.finish()))
}

fn concat(a: &Value, b: &Value) -> Result<Value, Error> {
    joined(&values::to_text(a)?, &values::to_text(b)?)
}

fn arithmetic(operator: &str, a: &Value, b: &Value) -> Result<Value, Error> {
    let overflow = || operation(format!("the result of {operator} is too large"));
    if let (Some(x), Some(y), true) = (as_int(a), as_int(b), operator != "/") {
        let zero = || operation(format!("{operator} by zero"));
        let result = match operator {
            "+" => x.checked_add(y),
            "-" => x.checked_sub(y),
            "*" => x.checked_mul(y),
            "//" | "%" if y == 0 => return Err(zero()),
            "//" => x.checked_div(y).map(|q| q - i128::from(x % y != 0 && (x < 0) != (y < 0))),
            "%" => x.checked_rem(y).map(|r| if r != 0 && (r < 0) != (y < 0) { r + y } else { r }),
            _ if y < 0 => return float_arithmetic("**", x as f64, y as f64),
            _ => u32::try_from(y).ok().and_then(|y| x.checked_pow(y)),
        };
        return result.map(int_value).ok_or_else(overflow);
    }
    match (as_float(a), as_float(b)) {
        (Some(x), Some(y)) => float_arithmetic(operator, x, y),
        _ => Err(unsupported(operator, a, b)),
    }
}

fn float_arithmetic(operator: &str, x: f64, y: f64) -> Result<Value, Error> {
    if y == 0.0 && matches!(operator, "/" | "//" | "%") {
        return Err(operation(format!("{operator} by zero")));
    }
    let (quotient, remainder) = divide_floats(x, y);
    Ok(Value::from(match operator {
        "+" => x + y,
        "-" => x - y,
        "*" => x * y,
        "/" => x / y,
        "//" => quotient,
        "%" => remainder,
        _ => x.powf(y),
    }))
}

/// float_divmod of CPython.
fn divide_floats(x: f64, y: f64) -> (f64, f64) {
    let mut remainder = x % y;
    let mut quotient = (x - remainder) / y;
    if remainder == 0.0 {
        remainder = 0.0f64.copysign(y);
    } else if (remainder < 0.0) != (y < 0.0) {
        remainder += y;
        quotient -= 1.0;
    }
    let floor = quotient.floor();
    let rounded = if quotient - floor > 0.5 { floor + 1.0 } else { floor };
    (if quotient == 0.0 { 0.0f64.copysign(x / y) } else { rounded }, remainder)
}

fn multiply(a: &Value, b: &Value) -> Result<Value, Error> {
    for (sequence, times) in [(a, b), (b, a)] {
        let Some(count) = as_int(times) else {
            continue;
        };
        let count = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
        if let Some(text) = sequence.as_str() {
            let mut out = Text::default();
            out.repeat(text, count)?;
            return Ok(Value::from(out.finish()));
        }
        if let Some(list) = sequence.downcast_object_ref::<List>() {
            if list.items.len().saturating_mul(count) > MAX_REPEATED_ITEMS {
                return Err(exceeded("a list is too large"));
            }
            let total = list.items.len() * count;
            let repeated = list.items.iter().cycle().take(total).cloned();
            return List::build(repeated.collect(), list.tuple);
        }
    }
    arithmetic("*", a, b)
}

fn remainder(a: &Value, b: &Value) -> Result<Value, Error> {
    match a.as_str() {
        Some(pattern) => percent_format(pattern, b),
        None => arithmetic("%", a, b),
    }
}

/// `pattern % value`; a tuple is several values.
fn percent_format(pattern: &str, value: &Value) -> Result<Value, Error> {
    let args = match value.downcast_object_ref::<List>() {
        Some(list) if list.tuple => list.items.clone(),
        _ => vec![value.clone()],
    };
    formats::printf(pattern, &args)
}

/// `a < b <= c`: the operators in one string, then the operands after the first.
fn compare_chain(first: Value, rest: &[Value]) -> Result<Value, Error> {
    let Some((operators, operands)) = rest.split_first() else {
        return Ok(Value::from(true));
    };
    let operators = operators.as_str().unwrap_or_default().split(' ');
    let mut left = &first;
    for (operator, right) in operators.zip(operands) {
        if !compare(operator, left, right)? {
            return Ok(Value::from(false));
        }
        left = right;
    }
    Ok(Value::from(true))
}

fn compare(operator: &str, a: &Value, b: &Value) -> Result<bool, Error> {
    match operator {
        "==" => Ok(equal(a, b)),
        "!=" => Ok(!equal(a, b)),
        "in" => contains(b, a),
        "notin" => Ok(!contains(b, a)?),
        _ => {
            let order = order(operator, a, b)?;
            Ok(match operator {
                "<" => order == Some(Ordering::Less),
                "<=" => matches!(order, Some(Ordering::Less | Ordering::Equal)),
                ">" => order == Some(Ordering::Greater),
                _ => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
            })
        }
    }
}

pub fn equal(a: &Value, b: &Value) -> bool {
    if let (Some(x), Some(y)) = (as_float(a), as_float(b)) {
        return match (as_int(a), as_int(b)) {
            (Some(x), Some(y)) => x == y,
            _ => x == y,
        };
    }
    if let (Some(x), Some(y)) = (a.downcast_object_ref::<List>(), b.downcast_object_ref::<List>()) {
        return x.tuple == y.tuple
            && x.items.len() == y.items.len()
            && x.items.iter().zip(&y.items).all(|(x, y)| equal(x, y));
    }
    if let (Some(x), Some(y)) = (a.downcast_object_ref::<Dict>(), b.downcast_object_ref::<Dict>()) {
        return x.entries.len() == y.entries.len()
            && x.entries.iter().all(|(key, x)| y.entries.get(key).is_some_and(|y| equal(x, y)));
    }
    a.kind() == b.kind() && a == b
}

pub fn order(operator: &str, a: &Value, b: &Value) -> Result<Option<Ordering>, Error> {
    if let (Some(x), Some(y)) = (a.as_str(), b.as_str()) {
        return Ok(Some(x.cmp(y)));
    }
    if let (Some(x), Some(y)) = (as_int(a), as_int(b)) {
        return Ok(Some(x.cmp(&y)));
    }
    if let (Some(x), Some(y)) = (as_float(a), as_float(b)) {
        return Ok(x.partial_cmp(&y));
    }
    if let (Some(x), Some(y)) = (a.downcast_object_ref::<List>(), b.downcast_object_ref::<List>()) {
        for (x, y) in x.items.iter().zip(&y.items) {
            if !equal(x, y) {
                return order(operator, x, y);
            }
        }
        return Ok(Some(x.items.len().cmp(&y.items.len())));
    }
    Err(unsupported(operator, a, b))
}

pub fn contains(container: &Value, wanted: &Value) -> Result<bool, Error> {
    if container.is_undefined() {
        return Ok(false);
    }
    if let Some(text) = container.as_str() {
        return match wanted.as_str() {
            Some(part) => Ok(text.contains(part)),
            None => Err(unsupported("in", wanted, container)),
        };
    }
    if let Some(list) = container.downcast_object_ref::<List>() {
        return Ok(list.items.iter().any(|item| equal(item, wanted)));
    }
    if let Some(dict) = container.downcast_object_ref::<Dict>() {
        check_key(wanted)?;
        return Ok(dict.entries.contains_key(wanted));
    }
    if container.as_object().is_some() && is_sequence(container) {
        return Ok(items(container)?.iter().any(|item| equal(item, wanted)));
    }
    Err(unsupported("in", wanted, container))
}

/// `a.name`: a method, or else an item; what is not there is undefined.
fn attr(a: &Value, name: &str) -> Result<Value, Error> {
    if a.is_undefined() {
        return Err(operation(format!("an undefined value has no attribute {name:?}")));
    }
    if methods::is_method(a, name) {
        return Ok(Value::from_object(Method { target: a.clone(), name: name.to_string() }));
    }
    if let Some(dict) = a.downcast_object_ref::<Dict>() {
        let found = dict.entries.get(&Value::from(name)).cloned();
        return Ok(found.filter(|_| !methods::changes_dict(name)).unwrap_or_default());
    }
    Ok(a.get_attr(name).unwrap_or_default())
}

/// `a[key]`: an item, or else a method; what is not there is undefined.
fn item(a: &Value, key: &Value) -> Result<Value, Error> {
    if a.is_undefined() {
        return Err(operation(format!("an undefined value has no item {}", values::to_text(key)?)));
    }
    if let Some(dict) = a.downcast_object_ref::<Dict>() {
        let found = check_key(key).ok().and_then(|()| dict.entries.get(key));
        if let Some(value) = found {
            return Ok(value.clone());
        }
    }
    if let Some(name) = key.as_str() {
        return match a.downcast_object_ref::<Dict>().is_some() && methods::changes_dict(name) {
            true => Ok(Value::UNDEFINED),
            false => attr(a, name),
        };
    }
    let Some(text) = a.as_str() else {
        return Ok(a.get_item(key).unwrap_or_default());
    };
    let Some(index) = as_int(key) else {
        return Ok(Value::UNDEFINED);
    };
    let found = if index < 0 {
        usize::try_from(-index - 1).ok().and_then(|index| text.chars().rev().nth(index))
    } else {
        usize::try_from(index).ok().and_then(|index| text.chars().nth(index))
    };
    Ok(found.map_or(Value::UNDEFINED, Value::from))
}

/// `a[start:stop:step]`, all as in Python; None = left out.
fn slice(a: &Value, bounds: [Value; 3]) -> Result<Value, Error> {
    let mut numbers = [None; 3];
    for (number, bound) in numbers.iter_mut().zip(&bounds) {
        *number = match as_int(bound) {
            Some(value) => Some(value.clamp(i64::MIN.into(), i64::MAX.into())),
            None if bound.is_none() => None,
            None => return Err(operation("the bounds of a slice must be integers".to_string())),
        };
    }
    let [start, stop, step] = numbers;
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(operation("the step of a slice cannot be 0".to_string()));
    }
    if let Some(text) = a.as_str() {
        if step == 1 {
            let length = text.chars().count();
            let (start, stop) = range(start, stop, 1, length);
            return Ok(Value::from(text::characters(text, start as usize, stop as usize)));
        }
        let chars: Vec<char> = text.chars().collect();
        let picked: String = positions(start, stop, step, chars.len()).map(|i| chars[i]).collect();
        return Ok(Value::from(picked));
    }
    if let Some(list) = a.downcast_object_ref::<List>() {
        let picked = positions(start, stop, step, list.items.len());
        return List::build(picked.map(|i| list.items[i].clone()).collect(), list.tuple);
    }
    if a.is_undefined() {
        return Err(operation("an undefined value cannot be sliced".to_string()));
    }
    Ok(Value::UNDEFINED)
}

/// PySlice_AdjustIndices: the first index and the one that is no longer in.
fn range(start: Option<i128>, stop: Option<i128>, step: i128, length: usize) -> (i128, i128) {
    let length = length as i128;
    let (low, high) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let adjust = |bound: i128| (if bound < 0 { bound + length } else { bound }).clamp(low, high);
    let (first, last) = if step > 0 { (low, high) } else { (high, low) };
    (start.map_or(first, adjust), stop.map_or(last, adjust))
}

fn positions(
    start: Option<i128>,
    stop: Option<i128>,
    step: i128,
    length: usize,
) -> impl Iterator<Item = usize> {
    let (first, last) = range(start, stop, step, length);
    let inside = move |at: &i128| if step > 0 { *at < last } else { *at > last };
    std::iter::successors(Some(first), move |at| Some(at + step))
        .take_while(inside)
        .map(|at| at as usize)
}

fn dict(pairs: &[Value]) -> Result<Value, Error> {
    let mut entries = Entries::new();
    for pair in pairs.chunks_exact(2) {
        check_key(&pair[0])?;
        entries.insert(pair[0].clone(), pair[1].clone());
    }
    Dict::build(entries)
}

fn set(target: &Value, name: &str, value: Value) -> Result<Value, Error> {
    match target.downcast_object_ref::<Namespace>() {
        Some(namespace) => namespace.set(name, value).map(|()| Value::from("")),
        None => Err(operation(format!(
            "cannot assign the attribute {name:?}: {} is not a namespace",
            type_name(target)
        ))),
    }
}

/// int(x) of Python, for numbers and strings.
pub fn to_int(value: &Value, base: u32) -> Option<i128> {
    if let Some(text) = value.as_str() {
        let digits = text::strip(text, text::Side::Both, text::is_space).replace('_', "");
        return i128::from_str_radix(&digits, base).ok();
    }
    if is_int(value) {
        return as_int(value);
    }
    as_float(value)
        .filter(|x| x.is_finite() && value.kind() == ValueKind::Number)
        .map(|x| x as i128)
}

/// The tests eq, lt, ... of Jinja2.
pub fn order_test(operator: &str, a: &Value, b: &Value) -> Result<bool, Error> {
    compare(operator, a, b)
}
