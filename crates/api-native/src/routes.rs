//! Routes of handlers that describe themselves: the path and the methods of each are those of its description.
//!
//! Only tests build the whole description, which the server has as a text: the code for that is a part of no program.

#[cfg(test)]
pub(crate) use described::{Routes, into_router, routes};
#[cfg(not(test))]
pub(crate) use plain::{Routes, into_router, routes};

#[cfg(test)]
mod described {
    use axum::Router;
    use penfold_server::AppState;
    pub(crate) use utoipa_axum::routes;

    pub(crate) type Routes = utoipa_axum::router::OpenApiRouter<AppState>;

    pub(crate) fn into_router(routes: Routes) -> Router<AppState> {
        routes.split_for_parts().0
    }
}

#[cfg(not(test))]
mod plain {
    use axum::Router;
    use axum::extract::DefaultBodyLimit;
    use axum::routing::MethodRouter;
    use penfold_server::AppState;

    /// Routes without descriptions.
    #[derive(Default)]
    pub(crate) struct Routes(Router<AppState>);

    impl Routes {
        pub(crate) fn new() -> Routes {
            Routes::default()
        }

        pub(crate) fn routes(self, (path, methods): (String, MethodRouter<AppState>)) -> Routes {
            Routes(self.0.route(&path, methods))
        }

        pub(crate) fn merge(self, other: Routes) -> Routes {
            Routes(self.0.merge(other.0))
        }

        pub(crate) fn layer(self, limit: DefaultBodyLimit) -> Routes {
            Routes(self.0.layer(limit))
        }
    }

    pub(crate) fn into_router(routes: Routes) -> Router<AppState> {
        routes.0
    }

    /// The path that handlers share, and which of them answers which method.
    macro_rules! routes {
        ($first:ident $(, $other:ident)*) => {
            utoipa_axum::paste! {{
                use utoipa::Path;
                use utoipa_axum::PathItemExt;
                let methods = axum::routing::MethodRouter::new();
                let methods = [<__path_ $first>]::methods()
                    .iter()
                    .fold(methods, |methods, method| methods.on(method.to_method_filter(), $first));
                $(let methods = [<__path_ $other>]::methods()
                    .iter()
                    .fold(methods, |methods, method| methods.on(method.to_method_filter(), $other));)*
                ([<__path_ $first>]::path(), methods)
            }}
        };
    }
    pub(crate) use routes;
}
