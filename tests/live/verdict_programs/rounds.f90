! Code of another language between the probes: its loops are padded, its names have an underscore.
subroutine fortran_round(n, total)
  integer, intent(in) :: n
  integer, intent(out) :: total
  integer :: i
  total = 0
  do i = 1, n
    total = total + ieor(i, n)
  end do
end subroutine
