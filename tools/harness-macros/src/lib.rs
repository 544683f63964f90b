//! The attribute `#[test]` of `penfold-harness`: registers the function with [inventory].
//!
//! [inventory]: https://docs.rs/inventory

use proc_macro::{Delimiter, Group, TokenStream, TokenTree};

/// Registers a function without arguments as a test. `#[ignore]` below it keeps the test out of ordinary runs.
#[proc_macro_attribute]
pub fn test(_arguments: TokenStream, function: TokenStream) -> TokenStream {
    let Function { item, name, is_ignored } = Function::read(function);
    let registration = format!(
        "::penfold_harness::inventory::submit! {{ ::penfold_harness::Registered {{ \
            name: ::core::concat!(::core::module_path!(), \"::{name}\"), is_ignored: {is_ignored}, run: {name} }} }}"
    );
    let Ok(registration) = registration.parse::<TokenStream>() else {
        return "::core::compile_error!(\"not a function\");".parse().unwrap_or_default();
    };
    item.into_iter().chain(registration).collect()
}

struct Function {
    item: TokenStream,
    name: String,
    is_ignored: bool,
}

impl Function {
    /// Finds the name, and removes `#[ignore]`, which the compiler would report as unused.
    fn read(function: TokenStream) -> Function {
        let mut read = Function { item: TokenStream::new(), name: String::new(), is_ignored: false };
        let mut tokens = function.into_iter().peekable();
        while let Some(token) = tokens.next() {
            if matches!(&token, TokenTree::Punct(punct) if punct.as_char() == '#')
                && tokens
                    .next_if(|next| matches!(next, TokenTree::Group(group) if is_ignore(group)))
                    .is_some()
            {
                read.is_ignored = true;
                continue;
            }
            let names = matches!(&token, TokenTree::Ident(word) if word.to_string() == "fn");
            read.item.extend([token]);
            if names && read.name.is_empty() {
                let name = tokens.next();
                read.name = name.as_ref().map(ToString::to_string).unwrap_or_default();
                read.item.extend(name);
            }
        }
        read
    }
}

fn is_ignore(group: &Group) -> bool {
    let first = group.stream().into_iter().next();
    group.delimiter() == Delimiter::Bracket
        && matches!(first, Some(TokenTree::Ident(word)) if word.to_string() == "ignore")
}
