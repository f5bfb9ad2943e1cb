"""Networks that recipes are made of, where no kept library has them."""
