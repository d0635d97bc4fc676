"""Who may join: join codes and the keys made from them."""
