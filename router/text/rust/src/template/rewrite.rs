//! Rebuilds a parsed template so that every operation which minijinja would do by its own rules,
//! or which can make something large, becomes one of ours (see `operators`).

use minijinja::machinery::ast::{self, BinOpKind, CallArg, CompareOpKind, Expr, Spanned, Stmt};
use minijinja::machinery::Span;
use minijinja::{Error, ErrorKind, Value};

use super::values::{Dict, Entries};

type Built<T> = Result<T, Error>;

/// Arguments of one call; longer literals are built in parts.
const MAX_ITEMS: usize = 500;
/// Filters that take anything false for an empty sequence.
const LAZY: [&str; 5] = ["map", "select", "reject", "selectattr", "rejectattr"];
const TEMPORARY: &str = "\u{1}value";

pub fn rewrite<'a>(stmt: &Stmt<'a>) -> Built<Stmt<'a>> {
    let mut statements = Vec::new();
    push_stmt(stmt, &mut statements)?;
    match statements.len() {
        1 => Ok(statements.remove(0)),
        _ => Err(Error::new(ErrorKind::SyntaxError, "the template has no root")),
    }
}

fn node<T>(value: T, span: Span) -> Spanned<T> {
    Spanned::new(value, span)
}

fn body<'a>(stmts: &[Stmt<'a>]) -> Built<Vec<Stmt<'a>>> {
    let mut result = Vec::with_capacity(stmts.len());
    for stmt in stmts {
        push_stmt(stmt, &mut result)?;
    }
    Ok(result)
}

fn constant<'a>(value: Value, span: Span) -> Expr<'a> {
    Expr::Const(node(ast::Const { value }, span))
}

/// `first|name(args)`
fn apply<'a>(name: &'a str, first: Expr<'a>, args: Vec<Expr<'a>>, span: Span) -> Expr<'a> {
    let args = args.into_iter().map(CallArg::Pos).collect();
    Expr::Filter(node(ast::Filter { name, expr: Some(first), args }, span))
}

fn emit<'a>(expr: Expr<'a>, span: Span) -> Stmt<'a> {
    Stmt::EmitExpr(node(ast::EmitExpr { expr }, span))
}

fn assign<'a>(target: &Spanned<ast::GetAttr<'a>>, value: Expr<'a>) -> Built<Stmt<'a>> {
    let span = target.span();
    let name = constant(Value::from(target.name), span);
    Ok(emit(apply("\u{1}set", expr(&target.expr)?, vec![name, value], span), span))
}

fn push_stmt<'a>(stmt: &Stmt<'a>, out: &mut Vec<Stmt<'a>>) -> Built<()> {
    out.push(match stmt {
        Stmt::Template(s) => {
            Stmt::Template(node(ast::Template { children: body(&s.children)? }, s.span()))
        }
        Stmt::EmitExpr(s) => emit(expr(&s.expr)?, s.span()),
        Stmt::EmitRaw(s) => emit(constant(Value::from(s.raw), s.span()), s.span()),
        Stmt::ForLoop(s) => for_loop(s)?,
        Stmt::IfCond(s) => {
            let cond = ast::IfCond {
                expr: expr(&s.expr)?,
                true_body: body(&s.true_body)?,
                false_body: body(&s.false_body)?,
            };
            Stmt::IfCond(node(cond, s.span()))
        }
        Stmt::WithBlock(s) => {
            let assignments = s
                .assignments
                .iter()
                .map(|(name, value)| Ok((target(name)?, expr(value)?)))
                .collect::<Built<_>>()?;
            Stmt::WithBlock(node(ast::WithBlock { assignments, body: body(&s.body)? }, s.span()))
        }
        Stmt::Set(s) => match &s.target {
            Expr::GetAttr(attribute) => assign(attribute, expr(&s.expr)?)?,
            name => {
                let set = ast::Set { target: target(name)?, expr: expr(&s.expr)? };
                Stmt::Set(node(set, s.span()))
            }
        },
        Stmt::SetBlock(s) => return set_block(s, out),
        Stmt::AutoEscape(s) => {
            let block = ast::AutoEscape { enabled: expr(&s.enabled)?, body: body(&s.body)? };
            Stmt::AutoEscape(node(block, s.span()))
        }
        Stmt::FilterBlock(s) => {
            let block = ast::FilterBlock { filter: expr(&s.filter)?, body: body(&s.body)? };
            Stmt::FilterBlock(node(block, s.span()))
        }
        Stmt::Block(s) => {
            let block = ast::Block { name: s.name, required: s.required, body: body(&s.body)? };
            Stmt::Block(node(block, s.span()))
        }
        Stmt::Macro(s) => Stmt::Macro(node(macro_decl(s)?, s.span())),
        Stmt::CallBlock(s) => {
            let block = ast::CallBlock {
                call: node(call(&s.call)?, s.call.span()),
                macro_decl: node(macro_decl(&s.macro_decl)?, s.macro_decl.span()),
            };
            Stmt::CallBlock(node(block, s.span()))
        }
        Stmt::Continue(s) => Stmt::Continue(node(ast::Continue, s.span())),
        Stmt::Break(s) => Stmt::Break(node(ast::Break, s.span())),
        Stmt::Do(s) => emit_nothing(Expr::Call(node(call(&s.call)?, s.call.span())), s.span()),
        Stmt::Import(_) | Stmt::FromImport(_) | Stmt::Extends(_) | Stmt::Include(_) => {
            return Err(Error::new(
                ErrorKind::SyntaxError,
                "a chat template cannot load another template",
            ));
        }
    });
    Ok(())
}

fn emit_nothing<'a>(value: Expr<'a>, span: Span) -> Stmt<'a> {
    let name = Expr::Var(node(ast::Var { id: TEMPORARY }, span));
    Stmt::Set(node(ast::Set { target: name, expr: value }, span))
}

fn set_block<'a>(s: &Spanned<ast::SetBlock<'a>>, out: &mut Vec<Stmt<'a>>) -> Built<()> {
    let filter = s.filter.as_ref().map(expr).transpose()?;
    let content = body(&s.body)?;
    let block =
        |target| Stmt::SetBlock(node(ast::SetBlock { target, filter, body: content }, s.span()));
    match &s.target {
        Expr::GetAttr(attribute) => {
            let name = || Expr::Var(node(ast::Var { id: TEMPORARY }, s.span()));
            out.push(block(name()));
            out.push(assign(attribute, name())?);
        }
        name => out.push(block(target(name)?)),
    }
    Ok(())
}

fn for_loop<'a>(s: &Spanned<ast::ForLoop<'a>>) -> Built<Stmt<'a>> {
    let result = ast::ForLoop {
        target: target(&s.target)?,
        iter: apply("\u{1}iter", expr(&s.iter)?, Vec::new(), s.iter.span()),
        filter_expr: s.filter_expr.as_ref().map(expr).transpose()?,
        recursive: s.recursive,
        body: body(&s.body)?,
        else_body: body(&s.else_body)?,
    };
    Ok(Stmt::ForLoop(node(result, s.span())))
}

fn macro_decl<'a>(s: &ast::Macro<'a>) -> Built<ast::Macro<'a>> {
    Ok(ast::Macro {
        name: s.name,
        args: s.args.iter().map(target).collect::<Built<_>>()?,
        defaults: s.defaults.iter().map(expr).collect::<Built<_>>()?,
        body: body(&s.body)?,
    })
}

/// What a value is assigned to: names, also several.
fn target<'a>(e: &Expr<'a>) -> Built<Expr<'a>> {
    match e {
        Expr::Var(v) => Ok(Expr::Var(node(ast::Var { id: v.id }, v.span()))),
        Expr::List(l) => {
            let items = l.items.iter().map(target).collect::<Built<_>>()?;
            Ok(Expr::List(node(ast::List { items }, l.span())))
        }
        Expr::Tuple(l) => {
            let items = l.items.iter().map(target).collect::<Built<_>>()?;
            Ok(Expr::List(node(ast::List { items }, l.span())))
        }
        _ => Err(Error::new(ErrorKind::SyntaxError, "cannot assign to this expression")),
    }
}

fn expr<'a>(e: &Expr<'a>) -> Built<Expr<'a>> {
    let span = e.span();
    Ok(match e {
        Expr::Var(v) => Expr::Var(node(ast::Var { id: v.id }, span)),
        Expr::Const(c) => constant(c.value.clone(), span),
        Expr::Slice(s) => {
            let bound = |bound: &Option<Expr<'a>>| match bound {
                Some(bound) => expr(bound),
                None => Ok(constant(Value::from(()), span)),
            };
            let bounds = vec![bound(&s.start)?, bound(&s.stop)?, bound(&s.step)?];
            apply("\u{1}slice", expr(&s.expr)?, bounds, span)
        }
        Expr::UnaryOp(u) => match u.op {
            ast::UnaryOpKind::Not => {
                let not = ast::UnaryOp { op: ast::UnaryOpKind::Not, expr: opaque(expr(&u.expr)?) };
                Expr::UnaryOp(node(not, span))
            }
            ast::UnaryOpKind::Neg => {
                let zero = constant(Value::from(0), span);
                apply("\u{1}sub", zero, vec![expr(&u.expr)?], span)
            }
        },
        Expr::BinOp(b) => binary(b, span)?,
        Expr::Compare(c) => {
            let operators: Vec<&str> = c.ops.iter().map(|op| comparison(op.op)).collect();
            let mut args = vec![constant(Value::from(operators.join(" ")), span)];
            for op in &c.ops {
                args.push(expr(&op.expr)?);
            }
            if args.len() > MAX_ITEMS {
                return Err(Error::new(ErrorKind::SyntaxError, "too many comparisons in one"));
            }
            apply("\u{1}compare", expr(&c.expr)?, args, span)
        }
        Expr::IfExpr(i) => {
            let result = ast::IfExpr {
                test_expr: expr(&i.test_expr)?,
                true_expr: expr(&i.true_expr)?,
                false_expr: i.false_expr.as_ref().map(expr).transpose()?,
            };
            Expr::IfExpr(node(result, span))
        }
        Expr::Filter(f) => {
            let mut input = f.expr.as_ref().map(expr).transpose()?;
            if LAZY.contains(&f.name) {
                input = input.map(|input| apply("\u{1}sequence", input, Vec::new(), span));
            }
            let filter = ast::Filter { name: f.name, expr: input, args: call_args(&f.args)? };
            apply("\u{1}adopt", Expr::Filter(node(filter, span)), Vec::new(), span)
        }
        Expr::Test(t) => {
            let test = ast::Test { name: t.name, expr: expr(&t.expr)?, args: call_args(&t.args)? };
            apply("\u{1}check", Expr::Test(node(test, span)), Vec::new(), span)
        }
        Expr::GetAttr(g) => {
            let name = constant(Value::from(g.name), span);
            apply("\u{1}attr", expr(&g.expr)?, vec![name], span)
        }
        Expr::GetItem(g) => {
            apply("\u{1}item", expr(&g.expr)?, vec![expr(&g.subscript_expr)?], span)
        }
        Expr::Call(c) => {
            let result = Expr::Call(node(call(c)?, span));
            match c.identify_call() {
                ast::CallType::Method(..) => apply("\u{1}check", result, Vec::new(), span),
                _ => result,
            }
        }
        Expr::List(l) => literal("\u{1}list", &l.items, span)?,
        Expr::Tuple(t) => literal("\u{1}tuple", &t.items, span)?,
        Expr::Map(m) => map(m, span)?,
    })
}

fn binary<'a>(b: &ast::BinOp<'a>, span: Span) -> Built<Expr<'a>> {
    let (left, right) = (expr(&b.left)?, expr(&b.right)?);
    let name = match b.op {
        BinOpKind::ScAnd | BinOpKind::ScOr => {
            let logical = ast::BinOp { op: b.op, left: opaque(left), right };
            return Ok(Expr::BinOp(node(logical, span)));
        }
        BinOpKind::Add => "\u{1}add",
        BinOpKind::Sub => "\u{1}sub",
        BinOpKind::Mul => "\u{1}mul",
        BinOpKind::Div => "\u{1}div",
        BinOpKind::FloorDiv => "\u{1}floordiv",
        BinOpKind::Rem => "\u{1}rem",
        BinOpKind::Pow => "\u{1}pow",
        BinOpKind::Concat => "\u{1}concat",
        BinOpKind::Eq => return Ok(compare_two("==", left, right, span)),
        BinOpKind::Ne => return Ok(compare_two("!=", left, right, span)),
        BinOpKind::Lt => return Ok(compare_two("<", left, right, span)),
        BinOpKind::Lte => return Ok(compare_two("<=", left, right, span)),
        BinOpKind::Gt => return Ok(compare_two(">", left, right, span)),
        BinOpKind::Gte => return Ok(compare_two(">=", left, right, span)),
        BinOpKind::In => return Ok(compare_two("in", left, right, span)),
    };
    Ok(apply(name, left, vec![right], span))
}

/// Keeps the compiler from folding constants, which it tries anew at each level of a chain.
fn opaque(e: Expr) -> Expr {
    match e {
        Expr::BinOp(_) | Expr::UnaryOp(_) => {
            let span = e.span();
            apply("\u{1}check", e, Vec::new(), span)
        }
        _ => e,
    }
}

fn compare_two<'a>(op: &'static str, left: Expr<'a>, right: Expr<'a>, span: Span) -> Expr<'a> {
    apply("\u{1}compare", left, vec![constant(Value::from(op), span), right], span)
}

fn comparison(op: CompareOpKind) -> &'static str {
    match op {
        CompareOpKind::Eq => "==",
        CompareOpKind::Ne => "!=",
        CompareOpKind::Lt => "<",
        CompareOpKind::Lte => "<=",
        CompareOpKind::Gt => ">",
        CompareOpKind::Gte => ">=",
        CompareOpKind::In => "in",
        CompareOpKind::NotIn => "notin",
    }
}

fn call<'a>(c: &ast::Call<'a>) -> Built<ast::Call<'a>> {
    // An attribute that is called stays one: that is a method call.
    let function = match &c.expr {
        Expr::GetAttr(g) => {
            Expr::GetAttr(node(ast::GetAttr { expr: expr(&g.expr)?, name: g.name }, g.span()))
        }
        other => expr(other)?,
    };
    Ok(ast::Call { expr: function, args: call_args(&c.args)? })
}

fn call_args<'a>(args: &[CallArg<'a>]) -> Built<Vec<CallArg<'a>>> {
    if args.len() > MAX_ITEMS {
        return Err(Error::new(ErrorKind::SyntaxError, "a call has too many arguments"));
    }
    args.iter()
        .map(|arg| {
            Ok(match arg {
                CallArg::Pos(value) => CallArg::Pos(expr(value)?),
                CallArg::Kwarg(name, value) => CallArg::Kwarg(name, expr(value)?),
                CallArg::PosSplat(value) => CallArg::PosSplat(expr(value)?),
                CallArg::KwargSplat(value) => CallArg::KwargSplat(expr(value)?),
            })
        })
        .collect()
}

fn literal<'a>(name: &'a str, items: &[Expr<'a>], span: Span) -> Built<Expr<'a>> {
    let part = |items: &[Expr<'a>]| -> Built<Expr<'a>> {
        let mut items = items.iter().map(expr).collect::<Built<Vec<_>>>()?;
        if items.is_empty() {
            let empty = super::values::List::build(Vec::new(), name == "\u{1}tuple")?;
            return Ok(constant(empty, span));
        }
        let first = items.remove(0);
        Ok(apply(name, first, items, span))
    };
    let mut parts = items.chunks(MAX_ITEMS);
    let mut result = part(parts.next().unwrap_or_default())?;
    for items in parts {
        result = apply("\u{1}add", result, vec![part(items)?], span);
    }
    Ok(result)
}

fn map<'a>(m: &ast::Map<'a>, span: Span) -> Built<Expr<'a>> {
    let mut items = Vec::new();
    for (key, value) in m.keys.iter().zip(&m.values) {
        items.push(expr(key)?);
        items.push(expr(value)?);
    }
    if items.is_empty() {
        return Ok(constant(Dict::build(Entries::new())?, span));
    }
    if items.len() > 2 * MAX_ITEMS {
        return Err(Error::new(ErrorKind::SyntaxError, "a dict has too many members"));
    }
    let first = items.remove(0);
    Ok(apply("\u{1}dict", first, items, span))
}
